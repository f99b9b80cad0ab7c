use hashbrown::HashMap;
use std::fmt::Write as _;

use super::*;
use crate::compile::calls::CallGraph;
use crate::compile::texts::Texts;
use crate::compile::{lower, uniform};
use sahasra_ptx_syntax::parser::parse;

/// Lowers a kernel with this body, which may use the registers %p1, %r0 to %r9999 and %rd1.
fn lowered(body: &str) -> Lowered {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{\n\
         .reg .pred %p<2>; .reg .b32 %r<10000>; .reg .b64 %rd<2>;\n{body}\n}}"
    );
    let source = parse(&text).expect("parses");
    let texts = Texts::new(std::slice::from_ref(&source)).unwrap_or_else(|(_, error)| panic!("{error}"));
    let graph = CallGraph::new(&texts);
    lower::lower(&texts, &graph, 0, HashMap::new()).expect("lowers")
}

/// Returns the live sets unless the limit is exceeded, the work done, and the number of blocks.
fn sets(lowered: &Lowered, limit: usize) -> (Option<Vec<Bits>>, usize, usize) {
    let uniform = uniform::analyse(lowered);
    let flow = analyse(lowered, &uniform);
    let graph = Graph::new(lowered, &flow.blocks, &flow.block_of);
    let (live, work) = liveness(lowered, &uniform, &flow.blocks, &graph, &flow.crossing, limit);
    (live, work, flow.blocks.len())
}

/// Blocks that each jump to the block above, so that control runs against the order of the text.
fn upwards(blocks: usize) -> String {
    let mut body = format!(
        "mov.u64 %rd1, 0; ld.global.u32 %r1, [%rd1]; bra L{};\nL0: st.global.u32 [%rd1], %r1; exit;\n",
        blocks - 1
    );
    for block in 1..blocks {
        let _ = writeln!(body, "L{block}: bra L{};", block - 1);
    }
    body
}

/// Nested loops, `depth` of them, around the use of a register that is set before them.
fn nested(depth: usize) -> String {
    let mut body = "mov.u64 %rd1, 0; ld.global.u32 %r1, [%rd1];\n".to_owned();
    for level in 0..depth {
        let _ = writeln!(body, "L{level}: add.u32 %r{0}, %r{0}, 1;", level + 2);
    }
    body.push_str("st.global.u32 [%rd1], %r1;\n");
    for level in (0..depth).rev() {
        let _ = writeln!(body, "setp.lt.u32 %p1, %r{}, 9; @%p1 bra L{level};", level + 2);
    }
    body
}

#[test]
fn work_is_proportional_to_the_program_for_any_order_of_blocks() {
    let work = |body: String| {
        let (live, work, _) = sets(&lowered(&body), usize::MAX);
        assert!(live.is_some());
        work
    };
    let (small, large) = (work(upwards(500)), work(upwards(2000)));
    assert!(large < 5 * small, "{small} for 500 blocks, {large} for 2000");
    // Each loop has its own register, so the sets grow too: the work is quadratic, divided by the 64 registers of a word.
    let (small, large) = (work(nested(64)), work(nested(256)));
    assert!(large < 4 * 4 * small, "{small} for 64 loops, {large} for 256");
}

#[test]
fn a_register_used_in_the_last_block_is_live_in_every_block() {
    let (live, _, blocks) = sets(&lowered(&upwards(100)), usize::MAX);
    // All blocks except the block that sets the register and the block after the end of the kernel.
    let reached = live.expect("no limit").iter().filter(|set| set.iter().next().is_some()).count();
    assert_eq!((reached, blocks), (100, 102));
}

#[test]
fn beyond_the_limit_every_crossing_register_counts_as_needed() {
    let lowered = lowered(&nested(20));
    let (live, work, _) = sets(&lowered, 100);
    assert!(live.is_none() && work < 250, "{work}");
    let uniform = uniform::analyse(&lowered);
    let flow = analyse_within(&lowered, &uniform, 100);
    let crossing: Vec<RegisterId> = (0..lowered.registers.len() as RegisterId)
        .filter(|register| flow.crosses(*register))
        .collect();
    assert!(crossing.len() > 20);
    for register in crossing {
        assert!(flow.is_live(0, register) && flow.needed_elsewhere(flow.blocks.len() - 1, register));
    }
}
