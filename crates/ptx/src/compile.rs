//! Compilation of a parsed kernel to bytecode: lower the syntax to operations, promote call parameters to registers, find the registers
//! that are uniform across a launch or a block, allocate register storage, and encode.

pub(crate) mod calls;
pub(crate) mod code;
pub(crate) mod encode;
mod flow;
pub(crate) mod ir;
pub(crate) mod lower;
mod place;
mod promote;
pub(crate) mod texts;
mod uniform;

use hashbrown::HashMap;

use calls::CallGraph;
use code::Code;
use sahasra_ptx_syntax::error::LoadError;
use texts::Texts;

/// Compiles the kernel at `index` among the module's functions. `parameters` maps each name to its offset and size in bytes.
///
/// # Errors
/// The first error, and the index of its text.
pub(crate) fn compile<'a>(
    texts: &'a Texts<'a>,
    graph: &'a CallGraph,
    index: usize,
    parameters: HashMap<&'a str, (u32, u32)>,
) -> Result<Code, (usize, LoadError)> {
    let mut lowered = lower::lower(texts, graph, index, parameters)?;
    promote::promote(&mut lowered);
    let uniform = uniform::analyse(&lowered);
    let flow = flow::analyse(&lowered, &uniform);
    let places = place::place(&lowered, &uniform, &flow);
    Ok(encode::encode(lowered, &uniform, &flow, &places))
}
