//! Execution of operations on the PTX engine.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sahasra_ptx::{Cancel, DevicePointer, Kernel, Launch, LoadedModule, Memory, Module, Output, Reservation};

use crate::sequences::Sequences;
use crate::unmapped::Unmapped;
use crate::{
    Extent, Failure, FailureKind, HostBlock, LaunchRequest, LoadFailure, ModuleDescription, ModuleId, Operation, Region, SequenceId,
};

/// Maximum bytes of texts whose translations are kept after their modules were unloaded.
const KEPT_TEXT_BYTES: usize = 16 << 20;
/// Threads of a launch for which a further host thread pays: starting one takes about as long as running this many short kernels.
const THREADS_PER_WORKER: u64 = 2048;
/// Size of the pieces in which memory is filled with elements of several bytes, in bytes.
const FILL_PIECE: usize = 64 << 10;

/// Loaded module with its kernels.
#[derive(Debug)]
struct Instance {
    loaded: LoadedModule,
    kernels: Vec<Kernel>,
}

/// Translations by their texts.
#[derive(Debug, Default)]
struct Translations {
    modules: HashMap<Vec<String>, Module>,
    bytes: usize,
}

/// State of a queue on the PTX engine: memory, modules and marks. The caller keeps the order: reads and loads may run at the same time as
/// operations that do not concern them.
#[derive(Debug)]
pub struct Engine {
    memory: Memory,
    unmapped: Unmapped,
    modules: Mutex<HashMap<ModuleId, Arc<Instance>>>,
    translations: Mutex<Translations>,
    marks: Mutex<HashMap<u64, Duration>>,
    sequences: Mutex<Sequences<Reservation>>,
    opened: Instant,
    output: Output,
    cancel: Cancel,
    threads: NonZero<usize>,
}

impl Engine {
    /// Engine with this memory, whose launches use up to `threads` host threads.
    pub fn new(memory: Memory, threads: NonZero<usize>) -> Self {
        Self {
            memory,
            unmapped: Unmapped::default(),
            modules: Mutex::default(),
            translations: Mutex::default(),
            marks: Mutex::default(),
            sequences: Mutex::default(),
            opened: Instant::now(),
            output: Output::default(),
            cancel: Cancel::new(),
            threads,
        }
    }

    /// Ends the running operation, if it can take long, and all such operations after it: launches, replays, copies and fills.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Frees everything. Nothing may be executed any more.
    pub fn clear(&self) {
        self.modules.lock().clear();
        *self.sequences.lock() = Sequences::default();
        self.memory.free_all();
    }

    /// Executes an operation.
    ///
    /// # Errors
    /// The fault of a kernel; [`FailureKind::Protocol`] if the operation does not fit the state.
    pub fn execute(&self, operation: &Operation) -> Result<(), Failure> {
        match operation {
            Operation::Map { address, bytes } => self.map(*address, *bytes),
            Operation::Unmap { address } if self.unmapped.remove(*address) => Ok(()),
            Operation::Unmap { address } => Ok(self.memory.free(DevicePointer(*address))?),
            Operation::Write { to, extent, bytes } => self.write(*to, *extent, bytes),
            Operation::Copy { from, to, extent } => self.copy(*from, *to, *extent),
            Operation::Fill {
                to,
                extent,
                value,
                element_bytes,
            } => self.fill(*to, *extent, *value, *element_bytes),
            Operation::Launch(request) => self.launch(request),
            Operation::Mark(mark) => {
                self.marks.lock().insert(*mark, self.opened.elapsed());
                Ok(())
            }
            Operation::Unload(module) => {
                let removed = self.modules.lock().remove(module);
                let instance = removed.ok_or_else(|| unknown(*module))?;
                instance.loaded.clone().unload(&self.memory);
                Ok(())
            }
            Operation::LimitHeap(bytes) => {
                self.memory.set_heap_limit(*bytes);
                Ok(())
            }
            Operation::Extend { sequence, operations } => self
                .sequences
                .lock()
                .extend(*sequence, operations, |bytes| Ok(self.memory.reserve(bytes)?)),
            Operation::Amend {
                sequence,
                index,
                operations,
            } => self.sequences.lock().amend(*sequence, *index, operations),
            Operation::Replay(sequence) => self.replay(*sequence),
            Operation::Erase(sequence) => self.sequences.lock().erase(*sequence),
        }
    }

    /// Executes a sequence to its end, but for a sticky failure. Returns the first failure.
    fn replay(&self, sequence: SequenceId) -> Result<(), Failure> {
        let operations = self.sequences.lock().operations(sequence)?;
        let mut outcome = Ok(());
        for operation in &*operations {
            self.check_cancelled("the launch of a graph")?;
            let executed = self.execute(operation);
            if executed.as_ref().is_err_and(Failure::is_sticky) {
                return executed;
            }
            outcome = outcome.and(executed);
        }
        outcome
    }

    fn check_cancelled(&self, what: &str) -> Result<(), Failure> {
        match self.cancel.is_cancelled() {
            true => Err(Failure::new(FailureKind::Lost, format!("{what} was cancelled"))),
            false => Ok(()),
        }
    }

    fn map(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        let failure = match self.memory.allocate_at(DevicePointer(address), bytes) {
            Ok(()) => return Ok(()),
            Err(error) => Failure::from(error),
        };
        Err(match failure.kind {
            FailureKind::OutOfMemory => self.unmapped.add(address, failure),
            _ => failure,
        })
    }

    /// Makes memory of this process accessible to kernels at its own address.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`] if the address is not one that clients may choose.
    pub fn share(&self, block: &Arc<HostBlock>) -> Result<(), Failure> {
        self.memory.share(Arc::clone(block))?;
        Ok(())
    }

    /// Writes rows.
    ///
    /// # Errors
    /// [`FailureKind::IllegalAddress`] if they are not in allocated memory.
    pub fn write(&self, to: Region, extent: Extent, bytes: &[u8]) -> Result<(), Failure> {
        if extent.bytes() != Some(bytes.len() as u64) {
            return Err(Failure::new(FailureKind::Protocol, "the bytes do not have the size of the rows"));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        for ((row, slice), bytes) in extent.rows().zip(bytes.chunks_exact(extent.width as usize)) {
            self.memory.write(address(&to, row, slice)?, bytes)?;
        }
        Ok(())
    }

    /// Reads rows.
    ///
    /// # Errors
    /// [`FailureKind::IllegalAddress`] if they are not in allocated memory.
    pub fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Failure> {
        if extent.bytes() != Some(into.len() as u64) {
            return Err(Failure::new(FailureKind::Protocol, "the target does not have the size of the rows"));
        }
        if into.is_empty() {
            return Ok(());
        }
        for ((row, slice), into) in extent.rows().zip(into.chunks_exact_mut(extent.width as usize)) {
            self.memory.read(address(&from, row, slice)?, into)?;
        }
        Ok(())
    }

    /// Whether an extent has bytes. Refuses those of more bytes than the memory has, whose rows would take for ever.
    fn has_bytes(&self, extent: Extent) -> Result<bool, Failure> {
        match extent.bytes() {
            Some(bytes) if bytes <= self.memory.capacity() => Ok(bytes > 0),
            _ => Err(Failure::new(FailureKind::Protocol, "the rows have more bytes than the memory")),
        }
    }

    fn copy(&self, from: Region, to: Region, extent: Extent) -> Result<(), Failure> {
        if !self.has_bytes(extent)? {
            return Ok(());
        }
        for (row, slice) in extent.rows() {
            self.check_cancelled("a copy")?;
            self.memory
                .copy(address(&from, row, slice)?, address(&to, row, slice)?, extent.width)?;
        }
        Ok(())
    }

    fn fill(&self, to: Region, extent: Extent, value: u32, element_bytes: u8) -> Result<(), Failure> {
        let value = value.to_le_bytes();
        let element = value.get(..usize::from(element_bytes)).filter(|element| !element.is_empty());
        let element = element.ok_or_else(|| Failure::new(FailureKind::Protocol, format!("elements of {element_bytes} bytes")))?;
        if !self.has_bytes(extent)? {
            return Ok(());
        }
        if element.iter().all(|byte| *byte == element[0]) {
            for (row, slice) in extent.rows() {
                self.check_cancelled("a fill")?;
                self.memory.fill(address(&to, row, slice)?, element[0], extent.width)?;
            }
            return Ok(());
        }
        let piece = element.repeat(FILL_PIECE / element.len());
        for (row, slice) in extent.rows() {
            self.check_cancelled("a fill")?;
            let mut target = address(&to, row, slice)?;
            let mut left = extent.width;
            while left > 0 {
                let length = left.min(piece.len() as u64);
                self.memory.write(target, &piece[..length as usize])?;
                target = target.offset(length);
                left -= length;
            }
        }
        Ok(())
    }

    fn launch(&self, request: &LaunchRequest) -> Result<(), Failure> {
        let instance = self.modules.lock().get(&request.module).cloned();
        let instance = instance.ok_or_else(|| unknown(request.module))?;
        let kernel = instance
            .kernels
            .get(request.function as usize)
            .ok_or_else(|| Failure::new(FailureKind::Protocol, format!("kernel {} not found", request.function)))?;
        let volume = |extent: [u32; 3]| extent.iter().fold(1, |all: u64, size| all.saturating_mul(u64::from(*size)));
        let blocks = volume(request.grid);
        let useful = (volume(request.block).saturating_mul(blocks) / THREADS_PER_WORKER).clamp(1, blocks.max(1));
        let workers = self.threads.get().min(usize::try_from(useful).unwrap_or(usize::MAX));
        let launch = Launch {
            dynamic_shared_bytes: request.dynamic_shared_bytes,
            threads: NonZero::new(workers).unwrap_or(NonZero::<usize>::MIN),
            stack_bytes: request.stack_bytes,
            output: kernel.prints().then(|| self.output.clone()),
            cooperative: request.cooperative,
            ..Launch::new(request.grid, request.block)
        };
        kernel.launch(&launch, &request.parameters, &self.memory, &self.cancel)?;
        Ok(())
    }

    /// Translates texts, or takes an earlier translation of the same texts.
    ///
    /// # Errors
    /// Errors of the texts.
    pub fn translate(&self, texts: &[&str]) -> Result<Module, LoadFailure> {
        let key: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        if let Some(module) = self.translations.lock().modules.get(&key) {
            return Ok(module.clone());
        }
        let module = Module::link(texts)?;
        let bytes: usize = key.iter().map(String::len).sum();
        let mut kept = self.translations.lock();
        if kept.bytes + bytes > KEPT_TEXT_BYTES {
            *kept = Translations::default();
        }
        kept.bytes += bytes;
        kept.modules.insert(key, module.clone());
        Ok(module)
    }

    /// Allocates and initialises the variables of a module.
    ///
    /// # Errors
    /// [`FailureKind::OutOfMemory`].
    pub fn load(&self, id: ModuleId, module: &Module) -> Result<ModuleDescription, Failure> {
        if self.modules.lock().contains_key(&id) {
            return Err(Failure::new(FailureKind::Protocol, format!("module {} is loaded already", id.0)));
        }
        let loaded = module.instantiate(&self.memory)?;
        let kernels: Vec<Kernel> = module.entries().filter_map(|kernel| loaded.entry(kernel.name())).collect();
        let description = ModuleDescription::of(&loaded, &kernels);
        self.modules.lock().insert(id, Arc::new(Instance { loaded, kernels }));
        Ok(description)
    }

    /// Time of a mark since the engine was made.
    pub fn marked(&self, mark: u64) -> Option<Duration> {
        self.marks.lock().get(&mark).copied()
    }

    pub fn forget(&self, mark: u64) {
        self.marks.lock().remove(&mark);
    }

    /// Removes and returns what kernels printed.
    pub fn printed(&self) -> Vec<u8> {
        self.output.take()
    }
}

fn unknown(module: ModuleId) -> Failure {
    Failure::new(FailureKind::Protocol, format!("module {} not found", module.0))
}

fn address(region: &Region, row: u64, slice: u64) -> Result<DevicePointer, Failure> {
    let address = region.row(row, slice);
    address
        .map(DevicePointer)
        .ok_or_else(|| Failure::new(FailureKind::IllegalAddress, "a row is beyond the address space"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_fills_of_many_rows_end_when_they_are_cancelled() {
        let engine = Engine::new(Memory::new(1 << 40), NonZero::<usize>::MIN);
        let address = 1 << 30;
        engine.execute(&Operation::Map { address, bytes: 512 }).unwrap();
        let region = Region::linear(address);
        let rows = |width, height| Extent { width, height, depth: 1 };
        let copy = |extent| Operation::Copy {
            from: region,
            to: region,
            extent,
        };
        let fill = |extent, element_bytes| Operation::Fill {
            to: region,
            extent,
            value: 0x0201,
            element_bytes,
        };
        let running = std::thread::scope(|scope| {
            // Without an end in the time of a test.
            let running = scope.spawn(|| engine.execute(&copy(rows(1, 1 << 39))));
            engine.cancel();
            running.join().unwrap()
        });
        let few = rows(2, 1000);
        for outcome in [
            running,
            engine.execute(&copy(few)),
            engine.execute(&fill(few, 1)),
            engine.execute(&fill(few, 2)),
        ] {
            assert_eq!(outcome.unwrap_err().kind, FailureKind::Lost);
        }
    }
}
