//! Kernels of the tests.

use sahasra_wire::burst::{Argument, Program, argument};
use sha2::{Digest, Sha256};

fn argument(kind: argument::Kind) -> Argument {
    Argument { kind: Some(kind) }
}

fn program(ptx: String, entry: &str, arguments: Vec<argument::Kind>, chunks: &str) -> Program {
    Program {
        digest: Sha256::digest(ptx.as_bytes()).to_vec().into(),
        ptx: ptx.into(),
        entry: entry.to_owned(),
        grid: vec![1, 1, 1],
        block: vec![1, 1, 1],
        dynamic_shared_bytes: 0,
        arguments: arguments.into_iter().map(argument).collect(),
        chunks_json: chunks.to_owned().into(),
        slice_bytes: super::coordinator::SLICE,
        chunk_timeout_milliseconds: 60_000,
        store: None,
        aggregated_output: None,
        aggregate_only: false,
    }
}

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// A parameter that is evaluated for each chunk.
const VALUE: &str = r#"{"value": {"type": "u32", "cel": "index % 7"}}"#;

/// Takes a parameter and does nothing: each chunk outputs `bytes` zeros.
pub(crate) fn zeros(chunks: u64, bytes: u64) -> Program {
    let ptx = format!("{HEADER}.visible .entry empty(.param .u64 out, .param .u32 value)\n{{\n\tret;\n}}\n");
    let arguments = vec![argument::Kind::OutputBytes(bytes), argument::Kind::Parameter("value".to_owned())];
    program(
        ptx,
        "empty",
        arguments,
        &format!("{{\"count\": {chunks}, \"parameters\": {VALUE}}}"),
    )
}

/// Writes `index * index + offset` as `u32`, then runs `rounds` iterations of an empty loop.
fn square_after(chunks: u64, rounds: &str) -> Program {
    let ptx = format!(
        "{HEADER}.visible .entry square(.param .u64 out, .param .u32 index, .param .u32 offset, .param .u32 rounds)
{{
	.reg .pred %p<2>;
	.reg .b32 %r<6>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [out];
	ld.param.u32 %r1, [index];
	ld.param.u32 %r2, [offset];
	ld.param.u32 %r4, [rounds];
	cvta.to.global.u64 %rd2, %rd1;
	mad.lo.u32 %r3, %r1, %r1, %r2;
$loop:
	setp.eq.u32 %p1, %r4, 0;
	@%p1 bra $done;
	add.u32 %r4, %r4, -1;
	bra $loop;
$done:
	st.global.u32 [%rd2], %r3;
	ret;
}}
"
    );
    let arguments = vec![
        argument::Kind::OutputBytes(4),
        argument::Kind::ChunkIndexBytes(4),
        argument::Kind::Parameter("offset".to_owned()),
        argument::Kind::Parameter("rounds".to_owned()),
    ];
    let chunks = format!(
        "{{\"count\": {chunks}, \"parameters\": {{\"offset\": {{\"type\": \"u32\", \"cel\": \"index % 7\"}}, \
         \"rounds\": {{\"type\": \"u32\", \"cel\": \"{rounds}\"}}}}}}"
    );
    program(ptx, "square", arguments, &chunks)
}

pub(crate) fn square(chunks: u64) -> Program {
    square_after(chunks, "0")
}

/// Like [`square`], but each chunk takes some milliseconds.
pub(crate) fn slow_square(chunks: u64) -> Program {
    square_after(chunks, "200000")
}

/// Chunks from `first` on practically never end; the others end at once.
pub(crate) fn stuck_from(first: u64, chunks: u64) -> Program {
    square_after(chunks, &format!("index < {first} ? 0 : 4000000000"))
}

pub(crate) fn squared(index: u64) -> Vec<u8> {
    (index * index + index % 7).to_le_bytes()[..4].to_vec()
}
