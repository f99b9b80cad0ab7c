//! Names of variables in images: the driver finds a variable by its name, and lists none.

use std::collections::BTreeMap;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use sahasra_cuda_device::LoadFailure;
use sahasra_cuda_device::fat_binary::{self, EntryKind};
use sahasra_ptx::Outline;

/// First bytes of an ELF file.
const ELF: &[u8] = b"\x7fELF";
/// Machine of a cubin (`EM_CUDA`). Other machines are those of hosts, whose objects have device code within.
const CUDA: u16 = 190;

/// Form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Cubin,
    FatBinary,
    /// Object of the host with device code within.
    Object,
    Archive,
}

impl Form {
    /// Form of an image, from its first bytes.
    pub(super) fn of(image: &[u8]) -> Self {
        if image.starts_with(ELF) {
            let machine = image.get(18..20).map(|machine| u16::from_le_bytes([machine[0], machine[1]]));
            return if machine == Some(CUDA) { Self::Cubin } else { Self::Object };
        }
        match sahasra_cuda_device::is_machine_code(image) {
            true if image.starts_with(b"!") => Self::Archive,
            true => Self::FatBinary,
            false => Self::Text,
        }
    }
}

/// What images declare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbols {
    /// Names of kernels in the order of the texts; machine code has none here.
    pub(super) kernels: Vec<String>,
    /// Block shapes that texts require, by the names of kernels.
    pub(super) required_blocks: BTreeMap<String, [u32; 3]>,
    /// Names of variables. The driver may not know one.
    pub(super) variables: Vec<String>,
    pub(super) variable_bytes: u64,
    /// Whether kernels may print.
    pub(super) prints: bool,
}

impl Symbols {
    /// Reads the declarations of images, and refuses those that end before what they announce: the driver trusts them.
    pub(super) fn of(images: &[&[u8]]) -> Result<Self, LoadFailure> {
        let mut symbols = Self::default();
        for image in images {
            match Form::of(image) {
                Form::Text => symbols.add_text(image)?,
                Form::Cubin => symbols.add_cubin(image)?,
                Form::FatBinary => symbols.add_fat_binary(image)?,
                Form::Object => {
                    // Symbols of the host.
                    Self::default().add_cubin(image)?;
                    symbols.prints = true;
                }
                Form::Archive => symbols.prints = true,
            }
        }
        let mut seen = std::collections::HashSet::new();
        symbols.variables.retain(|name| seen.insert(name.clone()));
        Ok(symbols)
    }

    fn add_text(&mut self, image: &[u8]) -> Result<(), LoadFailure> {
        let text = str::from_utf8(image).map_err(|_| LoadFailure::Invalid("the text is not UTF-8".to_owned()))?;
        let outline = Outline::of(text).map_err(LoadFailure::from)?;
        for entry in outline.entries {
            if let Some(block) = entry.required_block {
                self.required_blocks.insert(entry.name.clone(), block);
            }
            self.kernels.push(entry.name);
        }
        self.variables.extend(outline.variables);
        let bytes = outline.global_bytes.saturating_add(outline.constant_bytes);
        self.variable_bytes = self.variable_bytes.saturating_add(bytes);
        self.prints |= text.contains("vprintf");
        Ok(())
    }

    fn add_cubin(&mut self, image: &[u8]) -> Result<(), LoadFailure> {
        let damaged = |error: object::Error| LoadFailure::Invalid(format!("the machine code is damaged: {error}"));
        let file = ElfFile64::<object::Endianness>::parse(image).map_err(damaged)?;
        for section in file.sections() {
            section.data().map_err(damaged)?;
        }
        for symbol in file.symbols() {
            let name = symbol.name().map_err(damaged)?;
            if symbol.kind() == SymbolKind::Data && symbol.is_definition() {
                self.variable_bytes = self.variable_bytes.saturating_add(symbol.size());
                self.variables.push(name.to_owned());
            }
            self.prints |= name == "vprintf";
        }
        Ok(())
    }

    /// Adds what any entry declares, since the driver chooses one. Bytes are those of the largest. An entry that cannot be read may be for
    /// other GPUs, so that it is refused only if none can be read.
    fn add_fat_binary(&mut self, image: &[u8]) -> Result<(), LoadFailure> {
        let damaged = || LoadFailure::Invalid("the fat binary is damaged".to_owned());
        if fat_binary::length(image).is_none_or(|length| length > image.len()) {
            return Err(damaged());
        }
        let (mut largest, mut is_read, mut refused) = (0, false, None);
        for entry in fat_binary::entries(image).ok_or_else(damaged)? {
            let mut found = Self::default();
            let added = match entry.kind {
                EntryKind::Ptx => entry.text().ok_or_else(damaged).and_then(|text| found.add_text(text.as_bytes())),
                EntryKind::Cubin => entry.unpacked().ok_or_else(damaged).and_then(|cubin| found.add_cubin(&cubin)),
                EntryKind::Other => continue,
            };
            if let Err(failure) = added {
                refused.get_or_insert(failure);
                continue;
            }
            is_read = true;
            largest = largest.max(found.variable_bytes);
            self.kernels.append(&mut found.kernels);
            self.required_blocks.append(&mut found.required_blocks);
            self.variables.append(&mut found.variables);
            self.prints |= found.prints;
        }
        self.variable_bytes = self.variable_bytes.saturating_add(largest);
        refused.filter(|_| !is_read).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 7.0 .target sm_70 .address_size 64 .global .u32 a; .const .b8 table[8];
        .visible .entry second() .reqntid 32 { ret; } .entry first() { ret; }";

    /// A cubin with one variable of 24 bytes.
    fn cubin() -> Vec<u8> {
        use object::write::{Object, Symbol, SymbolSection};
        let mut object = Object::new(object::BinaryFormat::Elf, object::Architecture::X86_64, object::Endianness::Little);
        let section = object.section_id(object::write::StandardSection::Data);
        let value = object.append_section_data(section, &[7; 24], 8);
        object.add_symbol(Symbol {
            name: b"variable".to_vec(),
            value,
            size: 24,
            kind: SymbolKind::Data,
            scope: object::SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Section(section),
            flags: object::SymbolFlags::None,
        });
        let mut bytes = object.write().unwrap();
        bytes[18..20].copy_from_slice(&CUDA.to_le_bytes());
        bytes
    }

    /// A container with entries of these kinds and payloads.
    fn fat_binary(payloads: &[(u16, &[u8])]) -> Vec<u8> {
        let mut entries = Vec::new();
        for (kind, payload) in payloads {
            let mut header = vec![0; 64];
            header[..2].copy_from_slice(&kind.to_le_bytes());
            header[4] = 64;
            header[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
            entries.extend(header);
            entries.extend(*payload);
        }
        let mut container = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
        container.extend((entries.len() as u64).to_le_bytes());
        container.extend(entries);
        container
    }

    #[test]
    fn declarations_of_every_form_are_found() {
        let of_text = Symbols::of(&[TEXT.as_bytes()]).unwrap();
        assert_eq!(of_text.kernels, ["second", "first"]);
        assert_eq!(of_text.required_blocks, BTreeMap::from([("second".to_owned(), [32, 1, 1])]));
        assert_eq!(
            (of_text.variables.clone(), of_text.variable_bytes),
            (vec!["a".to_owned(), "table".to_owned()], 12)
        );
        assert_eq!(Symbols::of(&[&fat_binary(&[(1, TEXT.as_bytes())])]).unwrap(), of_text);
        let cubin = cubin();
        assert_eq!(
            (Form::of(&cubin), Form::of(&fat_binary(&[(2, &cubin)]))),
            (Form::Cubin, Form::FatBinary)
        );
        for image in [cubin.clone(), fat_binary(&[(2, &cubin)])] {
            let found = Symbols::of(&[&image, TEXT.as_bytes()]).unwrap();
            assert_eq!(
                (found.variables, found.variable_bytes),
                (vec!["variable".to_owned(), "a".to_owned(), "table".to_owned()], 36)
            );
        }
    }

    #[test]
    fn entries_that_cannot_be_read_are_refused_only_if_none_can() {
        let unknown: (u16, &[u8]) = (2, b"no cubin");
        let found = Symbols::of(&[&fat_binary(&[unknown, (1, TEXT.as_bytes())])]).unwrap();
        assert_eq!(found.kernels, ["second", "first"]);
        let refused = Symbols::of(&[&fat_binary(&[unknown])]);
        assert!(matches!(refused, Err(LoadFailure::Invalid(_))), "{refused:?}");
    }

    #[test]
    fn images_that_are_cut_are_refused() {
        let cubin = cubin();
        let container = fat_binary(&[(2, &cubin)]);
        for (image, lengths) in [(&cubin, [20, 63, cubin.len() - 1]), (&container, [8, 40, container.len() - 1])] {
            for length in lengths {
                let refused = Symbols::of(&[&image[..length]]);
                assert!(
                    matches!(refused, Err(LoadFailure::Invalid(_))),
                    "{length} of {}: {refused:?}",
                    image.len()
                );
            }
        }
    }
}
