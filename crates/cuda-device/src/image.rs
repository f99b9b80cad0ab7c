//! Images of modules: PTX texts, and machine code.

use crate::LoadFailure;

/// What to do about machine code that a device does not run.
pub const REMEDY: &str = "the image has machine code for a GPU and this device runs PTX: compile for PTX, as nvcc does with \
     -gencode arch=compute_80,code=compute_80";
/// First bytes of an ELF file: a cubin, or an object of the host.
const ELF: &[u8] = b"\x7fELF";
/// First bytes of a fat binary.
const FAT_BINARY: &[u8] = &0xba55_ed50u32.to_le_bytes();
/// First bytes of an archive of objects.
const ARCHIVE: &[u8] = b"!<arch>\n";

/// Whether an image is no text: a cubin, an object, an archive or a fat binary.
pub fn is_machine_code(image: &[u8]) -> bool {
    [ELF, FAT_BINARY, ARCHIVE].iter().any(|first| image.starts_with(first))
}

/// Images as texts, for a device that runs nothing else.
///
/// # Errors
/// [`LoadFailure::NoBinary`] with the remedy for machine code, [`LoadFailure::Invalid`] for what is not UTF-8.
pub fn texts<'a>(images: &[&'a [u8]]) -> Result<Vec<&'a str>, LoadFailure> {
    let text = |image: &&'a [u8]| match str::from_utf8(image) {
        _ if is_machine_code(image) => Err(LoadFailure::NoBinary(REMEDY.to_owned())),
        Ok(text) => Ok(text),
        Err(_) => Err(LoadFailure::Invalid("the text is not UTF-8".to_owned())),
    };
    images.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_is_refused_with_the_remedy_and_texts_are_read() {
        assert_eq!(texts(&[b".version 7.0", b""]), Ok(vec![".version 7.0", ""]));
        for image in [&b"\x7fELF\x02"[..], b"\x50\xed\x55\xba", b"!<arch>\n"] {
            assert!(is_machine_code(image));
            assert_eq!(texts(&[b"text", image]), Err(LoadFailure::NoBinary(REMEDY.to_owned())));
        }
        assert!(matches!(texts(&[b"\xff"]), Err(LoadFailure::Invalid(_))));
    }
}
