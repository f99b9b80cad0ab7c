//! Reason why a compiler rejects a program. Distinguishes errors that no change of the program's own text can fix.

use sahasra_pjrt::{Code, Error};
use sahasra_wire::session::FailureCode;

use crate::session::engine::{Description, Fault};

/// Phrases in messages of a compiler that lacks an implementation of a call.
const CALLS: [&str; 4] = ["custom call", "custom-call", "custom_call", "ffi handler"];
/// Magic number of MLIR bytecode, the format of portable artifacts. One byte with the version of the format follows, then the name of the
/// producer, up to a zero byte.
const BYTECODE: &[u8] = b"ML\xefR";
/// Name of the producer of a portable artifact, before its version.
const WRITER: &str = "StableHLO_v";

/// Fault for a compilation error: the compiler's message with advice for the user. `here` describes the engine.
pub(crate) fn fault(error: &Error, code: &[u8], here: &Description) -> Fault {
    let message = error.message.to_lowercase();
    if error.code == Code::ResourceExhausted {
        return Fault::new(FailureCode::OutOfMemory, error.to_string());
    }
    if CALLS.iter().any(|some| message.contains(some)) {
        let message = format!(
            "the program uses a call that platform {} does not support: avoid the operation that needs it, or run that part locally: {error}",
            here.platform
        );
        return Fault::new(FailureCode::Incompatible, message);
    }
    if let Some(version) = artifact_version(code)
        && newer(&version, &here.stablehlo_version)
    {
        let message = format!(
            "the program was exported for StableHLO {version}, the newest supported version is {}: export for that version: {error}",
            here.stablehlo_version
        );
        return Fault::new(FailureCode::Incompatible, message);
    }
    if error.code == Code::Unimplemented {
        let message = format!("platform {} cannot run the program: {error}", here.platform);
        return Fault::new(FailureCode::Incompatible, message);
    }
    Fault::new(FailureCode::CompileFailed, error.to_string())
}

/// Version of the StableHLO that produced a portable artifact.
fn artifact_version(code: &[u8]) -> Option<String> {
    let (_bytecode_version, writer) = code.strip_prefix(BYTECODE)?.split_first()?;
    let end = writer.iter().take(64).position(|byte| *byte == 0)?;
    let version = std::str::from_utf8(&writer[..end]).ok()?.strip_prefix(WRITER)?;
    Some(version.to_owned())
}

fn newer(version: &str, than: &str) -> bool {
    let numbers = |text: &str| text.split('.').map(|number| number.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
    numbers(version) > numbers(than)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(code: Code, message: &str, program: &[u8]) -> FailureCode {
        let error = Error {
            function: "PJRT_Client_Compile",
            code,
            message: message.to_owned(),
        };
        let here = Description {
            platform: "cpu".to_owned(),
            stablehlo_version: "1.9.0".to_owned(),
            ..Description::default()
        };
        fault(&error, program, &here).code
    }

    #[test]
    fn reasons_of_rejections_are_distinguished() {
        let text = b"module {}".as_slice();
        let calls = "No registered implementation for untyped custom call to lapack_dpotrf_ffi";
        assert_eq!(code_of(Code::Unknown, calls, text), FailureCode::Incompatible);
        assert_eq!(code_of(Code::Unimplemented, "no such thing", text), FailureCode::Incompatible);
        assert_eq!(code_of(Code::InvalidArgument, "does not parse", text), FailureCode::CompileFailed);
        assert_eq!(code_of(Code::ResourceExhausted, "too much", text), FailureCode::OutOfMemory);
        let artifact = |version: &str| [b"ML\xefR\x06StableHLO_v".as_slice(), version.as_bytes(), b"\0rest"].concat();
        let parse = "Failed to parse";
        assert_eq!(code_of(Code::Unknown, parse, &artifact("1.10.0")), FailureCode::Incompatible);
        assert_eq!(code_of(Code::Unknown, parse, &artifact("1.9.0")), FailureCode::CompileFailed);
        assert_eq!(code_of(Code::Unknown, parse, b"ML\xefR\x06LLVM22\0"), FailureCode::CompileFailed);
        assert_eq!(code_of(Code::Unknown, parse, b"ML\xefR"), FailureCode::CompileFailed);
    }
}
