//! Exports that jump to this library's function or to that of the driver of this machine.
//!
//! ```text
//! caller ─► export: index ─► target ─┬─► unresolved ─► Exports::resolve    the first call of the process: sets all targets
//!                                    ├─► the function of this library
//!                                    └─► the function of the local driver, or absent
//! ```
//!
//! Which library answers is decided once, by the first call. From then on a call costs one indirect jump, and its arguments and result are not
//! touched.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::local::{Local, Search};

/// Export that jumps to our function or to that of the local driver.
pub struct Function {
    /// Name of the export.
    pub name: &'static str,
    /// Address of this library's function, with the type that the API documents.
    pub own: *const (),
}

// SAFETY: the address is that of a function.
unsafe impl Sync for Function {}

/// The exports of a library.
pub struct Exports {
    /// Name by which programs open the library.
    pub library: &'static str,
    /// Exports, in the order of the jumps.
    pub functions: &'static [Function],
    /// Target of each export, in the same order.
    pub targets: &'static [AtomicPtr<()>],
    /// Target of exports that the local driver lacks.
    pub absent: *const (),
    /// Whether the environment names a device, so that this library answers.
    pub names_a_device: fn() -> bool,
    /// The local driver, or what was searched for it.
    pub choice: OnceLock<Result<Local, Search>>,
}

// SAFETY: the address is that of a function.
unsafe impl Sync for Exports {}

impl Exports {
    /// Decides which library answers, if that is not decided yet, and sets all targets. Returns the target of the export with this index.
    pub fn resolve(&self, index: usize) -> *const () {
        if self.choice.get().is_none() {
            let choice = match (self.names_a_device)() {
                true => Err(Search::default()),
                false => Local::open(self.library, self.functions[index].own.cast::<c_void>()),
            };
            // Another thread may have decided meanwhile. The library that it opened is the same one. No lock is held while a library is
            // opened, whose initialisers may call exports.
            let _ = self.choice.set(choice);
        }
        let local = self.choice.get().and_then(|choice| choice.as_ref().ok());
        for (function, target) in self.functions.iter().zip(self.targets) {
            let address = match local {
                None => function.own,
                Some(local) => local
                    .symbol(function.name)
                    .map_or(self.absent, |address| address.cast_const().cast()),
            };
            target.store(address.cast_mut(), Ordering::Relaxed);
        }
        self.targets[index].load(Ordering::Relaxed)
    }

    /// What was searched for a driver of this machine, as the end of a message that there is no device.
    pub fn searched(&self) -> Option<String> {
        self.choice.get()?.as_ref().err()?.text(self.library)
    }
}

/// Defines `unresolved` and `absent`, the first targets of all exports of `EXPORTS` and that of those that a local driver lacks. `$lacking`
/// is the result code of the latter.
#[macro_export]
macro_rules! redirections {
    ($exports:path, $status:ty, $lacking:expr) => {
        extern "C" fn resolve(index: u32) -> *const () {
            $exports.resolve(index as usize)
        }

        extern "C" fn refuse_absent(index: u32) -> $status {
            let name = $exports.functions[index as usize].name;
            $crate::log::once(format!("the driver of this machine has no {name}"));
            $lacking
        }

        /// Saves the registers of arguments, sets all targets, and continues with the call.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        extern "C" fn unresolved() {
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "and rsp, -16",
                "sub rsp, 192",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov [rsp + 48], rax",
                "mov [rsp + 56], r11",
                "movaps [rsp + 64], xmm0",
                "movaps [rsp + 80], xmm1",
                "movaps [rsp + 96], xmm2",
                "movaps [rsp + 112], xmm3",
                "movaps [rsp + 128], xmm4",
                "movaps [rsp + 144], xmm5",
                "movaps [rsp + 160], xmm6",
                "movaps [rsp + 176], xmm7",
                "mov edi, r11d",
                "call {resolve}",
                "mov r10, rax",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "mov rax, [rsp + 48]",
                "mov r11, [rsp + 56]",
                "movaps xmm0, [rsp + 64]",
                "movaps xmm1, [rsp + 80]",
                "movaps xmm2, [rsp + 96]",
                "movaps xmm3, [rsp + 112]",
                "movaps xmm4, [rsp + 128]",
                "movaps xmm5, [rsp + 144]",
                "movaps xmm6, [rsp + 160]",
                "movaps xmm7, [rsp + 176]",
                "mov rsp, rbp",
                "pop rbp",
                "jmp r10",
                resolve = sym resolve,
            )
        }

        /// Saves the registers of arguments, sets all targets, and continues with the call.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        extern "C" fn unresolved() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-224]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp x8, x17, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "mov w0, w17",
                "bl {resolve}",
                "mov x16, x0",
                "ldp q6, q7, [sp, #192]",
                "ldp q4, q5, [sp, #160]",
                "ldp q2, q3, [sp, #128]",
                "ldp q0, q1, [sp, #96]",
                "ldp x8, x17, [sp, #80]",
                "ldp x6, x7, [sp, #64]",
                "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #224",
                "br x16",
                resolve = sym resolve,
            )
        }

        /// Refuses a call, whose index the export has left in a register.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        extern "C" fn absent() {
            core::arch::naked_asm!("mov edi, r11d", "jmp {refuse}", refuse = sym refuse_absent)
        }

        /// Refuses a call, whose index the export has left in a register.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        extern "C" fn absent() {
            core::arch::naked_asm!("mov w0, w17", "b {refuse}", refuse = sym refuse_absent)
        }
    };
}
