//! Calls and returns (PTX ISA §9.7.12.5, §9.7.12.6).

use super::Block;
use super::memory::within;
use super::program::Argument;
use super::thread::{Frame, State, Thread, U64};

/// Maximum nesting of calls.
const NESTED: usize = 200;

impl Block<'_> {
    pub(super) fn leave(&mut self, thread: &mut Thread) -> Result<(), String> {
        let program = self.program;
        let Some(mut left) = thread.frames.pop() else { return Ok(()) };
        let Some(caller) = thread.frames.last_mut() else {
            thread.frames.push(left);
            thread.state = State::Ended;
            return Ok(());
        };
        thread.local.truncate(left.local as usize);
        // The call precedes the next instruction of the caller.
        let call = &program.functions[caller.function].code[caller.pc - 1];
        if let [Argument::List(targets), _, ..] = call.arguments.as_slice() {
            for (target, slot) in targets.iter().zip(&program.functions[left.function].returns) {
                let bytes = within(&mut left.parameters, slot.0, slot.1 as usize)?;
                match target {
                    Argument::Parameter(start, size) if *size == slot.1 => {
                        within(&mut caller.parameters, *start, bytes.len())?.copy_from_slice(bytes)
                    }
                    other => return Err(format!("{other:?} takes a result")),
                }
            }
        }
        Ok(())
    }

    /// `call (results), function or pointer, (arguments), prototype`, of which only the function is mandatory.
    pub(super) fn call(&mut self, thread: &mut Thread, arguments: &[Argument]) -> Result<(), String> {
        let program = self.program;
        let rest = match arguments {
            [Argument::List(_), rest @ ..] => rest,
            rest => rest,
        };
        let callee = match rest.first() {
            Some(Argument::Name(name)) => program.function(name).ok_or_else(|| format!("no function {name}"))?,
            Some(pointer @ Argument::Register(_)) => {
                let address = self.get(thread, pointer, U64)?;
                program.at_address(address).ok_or_else(|| format!("no function at {address:#x}"))?
            }
            other => return Err(format!("{other:?} is called")),
        };
        let local = (thread.local.len() as u64).next_multiple_of(16);
        thread.local.resize((local + program.functions[callee].local_bytes) as usize, 0);
        let mut frame = Frame::new(program, callee, local);
        if let Some(Argument::List(passed)) = rest.get(1) {
            for (argument, (start, size)) in passed.iter().zip(&program.functions[callee].parameters) {
                let bytes = match argument {
                    Argument::Parameter(from, length) if length == size => within(&mut thread.frame().parameters, *from, *length as usize)?,
                    other => return Err(format!("{other:?} as an argument")),
                };
                within(&mut frame.parameters, *start, bytes.len())?.copy_from_slice(bytes);
            }
        }
        if thread.frames.len() > NESTED {
            return Err("calls nest too deep".to_owned());
        }
        thread.frames.push(frame);
        Ok(())
    }
}
