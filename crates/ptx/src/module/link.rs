//! Linking of texts to a module: parses them, resolves their names, and compiles their kernels.

use hashbrown::{HashMap, HashSet};
use std::fmt;

use super::variable::Variable;
use super::{Entry, Inner, Parameter};
use crate::compile::calls::CallGraph;
use crate::compile::compile;
use crate::compile::lower::file_key;
use crate::compile::texts::Texts;
use sahasra_ptx_syntax::PARAMETER_LIMIT;
use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind};
use sahasra_ptx_syntax::parser::parse;
use sahasra_ptx_syntax::syntax;
use sahasra_ptx_syntax::types::Space;

/// Texts that could not be linked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError {
    /// Index of the text that has the error.
    pub text: usize,
    pub error: LoadError,
    /// The kernel that the error prevents from running, if it is no error of the whole text.
    pub kernel: Option<String>,
}

impl fmt::Display for LinkError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "text {}: ", self.text)?;
        if let Some(kernel) = &self.kernel {
            write!(formatter, "kernel {kernel}: ")?;
        }
        write!(formatter, "{}", self.error)
    }
}

impl std::error::Error for LinkError {}

/// Maximum number of operations of all kernels of a module, unless its text has more bytes than that. A function is compiled for each
/// kernel that calls it, so the length of the text alone does not bound the operations. A million operations take about two seconds.
const OPERATION_LIMIT: usize = 1 << 20;

/// Links texts. Kernels that are not supported are an error, or stay without code if `refuses_kernels`.
///
/// # Errors
/// The first error, and the index of its text.
pub(super) fn link(texts: &[&str], refuses_kernels: bool) -> Result<Inner, (usize, LoadError)> {
    let parsed = texts
        .iter()
        .enumerate()
        .map(|(index, text)| parse(text).map_err(|error| (index, error)));
    let sources = parsed.collect::<Result<Vec<_>, _>>()?;
    let linked = Texts::new(&sources)?;
    let graph = CallGraph::new(&linked);
    let entries = kernels(&linked, &graph, texts.iter().map(|text| text.len()).sum(), refuses_kernels)?;
    let files = sources.iter().enumerate().flat_map(|(text, source)| {
        let files = source.files.iter();
        files.map(move |(index, name)| (file_key(text, *index), (*name).to_owned()))
    });
    let files = files.collect();
    let is_global = |variable: &syntax::Variable<'_>| variable.space == Space::Global && !variable.is_external();
    let declares = |name: &str| (0..sources.len()).any(|text| linked.declares(text, name));
    Ok(Inner {
        entries,
        variables: variables(&linked)?,
        has_globals: linked.variables.iter().any(|(variable, _)| is_global(variable)),
        declares_malloc: declares("malloc"),
        declares_printf: declares("vprintf"),
        files,
    })
}

/// Returns the variables with static storage, by index; `None` for those that need no storage of this module.
fn variables(texts: &Texts<'_>) -> Result<Vec<Option<Variable>>, (usize, LoadError)> {
    let all = texts.variables.iter().enumerate();
    all.map(|(index, (variable, text))| match variable.space {
        Space::Global | Space::Constant if !variable.is_external() && texts.is_used(*text, index) => {
            Variable::new(variable, *text, texts).map(Some).map_err(|error| (*text, error))
        }
        _ => Ok(None),
    })
    .collect()
}

/// Compiles the kernels of texts that have `length` bytes together.
fn kernels(texts: &Texts<'_>, graph: &CallGraph, length: usize, refuses_kernels: bool) -> Result<Vec<Entry>, (usize, LoadError)> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut names_seen = HashSet::new();
    let mut operations = 0usize;
    for (index, (function, text)) in texts.functions.iter().enumerate() {
        if !function.is_entry || function.body.is_none() {
            continue;
        }
        let invalid = |reason: String| {
            let kind = LoadErrorKind::Invalid(reason);
            (*text, LoadError::new(function.position, format!(".entry {}", function.name), kind))
        };
        if !names_seen.insert(function.name) {
            return Err(invalid("declared twice".into()));
        }
        let parameters = layout(&function.parameters);
        let parameter_bytes = parameters.last().map_or(0, |last| last.offset + last.size);
        if parameter_bytes > PARAMETER_LIMIT {
            return Err(invalid(format!("{parameter_bytes} bytes of parameters, at most {PARAMETER_LIMIT}")));
        }
        let names = function
            .parameters
            .iter()
            .zip(&parameters)
            .map(|(declared, placed)| (declared.name, (placed.offset as u32, placed.size as u32)))
            .collect::<HashMap<_, _>>();
        let code = match compile(texts, graph, index, names) {
            Err((text, error)) if refuses_kernels && matches!(error.kind, LoadErrorKind::Unsupported(_)) => Err((text, error)),
            compiled => Ok(compiled?),
        };
        operations += match &code {
            Ok(code) => code.instructions.len(),
            // At most what was compiled before the refusal.
            Err(_) => graph
                .reachable(index)
                .into_iter()
                .chain([index])
                .map(|index| statements(texts, index))
                .sum(),
        };
        let limit = OPERATION_LIMIT.max(length);
        if operations > limit {
            return Err(invalid(format!(
                "more than {limit} operations in the module, functions counted once a kernel"
            )));
        }
        entries.push(Entry {
            name: function.name.to_owned(),
            parameters,
            parameter_bytes,
            thread_limit: function.thread_limit,
            code,
        });
    }
    Ok(entries)
}

/// Number of statements of a function.
fn statements(texts: &Texts<'_>, index: usize) -> usize {
    fn count(body: &[syntax::Statement<'_>]) -> usize {
        let of = |statement: &syntax::Statement<'_>| match statement {
            syntax::Statement::Scope(inner) => count(inner),
            _ => 1,
        };
        body.iter().map(of).sum()
    }
    count(texts.functions[index].0.body.as_deref().unwrap_or_default())
}

/// Lays out parameters as the CUDA driver packs arguments: each at its own alignment.
fn layout(declared: &[syntax::Variable<'_>]) -> Vec<Parameter> {
    let mut end = 0usize;
    declared
        .iter()
        .map(|variable| {
            let align = variable.alignment as usize;
            let size = usize::try_from(variable.bytes().unwrap_or(0))
                .unwrap_or(usize::MAX / 4)
                .min(usize::MAX / 4);
            let offset = end.next_multiple_of(align.max(1));
            end = offset.saturating_add(size).min(usize::MAX / 4);
            Parameter {
                name: variable.name.to_owned(),
                scalar: variable.scalar,
                size,
                align,
                offset,
                is_pointer: variable.is_pointer,
            }
        })
        .collect()
}
