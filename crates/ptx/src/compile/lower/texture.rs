//! Textures (PTX ISA §9.7.10) and surfaces (§9.7.11): `tex`, `suld.b`, `sust.b`, `txq`, `suq`.
//!
//! A texture has one level of detail and no gradients, so levels and gradients change nothing.

use super::{At, Lowering};
use crate::compile::ir::{Action, Geometry, Origin, Outside, RegisterId, SystemCall, Width};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::ScalarType as T;

fn geometry(words: &[&str], is_integer: bool) -> Option<Geometry> {
    words.iter().find_map(|word| {
        let (dimensions, is_layered) = match *word {
            "1d" => (1, false),
            "2d" => (2, false),
            "3d" => (3, false),
            "a1d" => (1, true),
            "a2d" => (2, true),
            _ => return None,
        };
        Some(Geometry {
            dimensions,
            is_layered,
            is_integer,
        })
    })
}

impl<'a> Lowering<'a> {
    /// Returns the handle that an operand names: a register, a variable that holds it, or a parameter of the kernel.
    fn handle(&mut self, at: At<'a, '_>, operand: &Operand<'a>) -> Result<RegisterId, LoadError> {
        let name = match operand {
            Operand::Name(name, 0)
            | Operand::Address {
                base: Some(name),
                addend: 0,
            } => name,
            _ => return Err(at.invalid("expected a texture, a surface or a register")),
        };
        if self.register(name).is_none()
            && let Some((offset, 8)) = self.kernel_parameter(name)
        {
            let origin = Origin::Parameter {
                offset,
                bytes: 8,
                signed: false,
            };
            return Ok(self.fixed(Width::W64, origin));
        }
        self.source(at, &Operand::Name(name, 0), T::U64)
    }

    /// Appends the layer and the coordinates.
    fn coordinates(
        &mut self,
        at: At<'a, '_>,
        geometry: Geometry,
        operand: &Operand<'a>,
        sources: &mut Vec<RegisterId>,
    ) -> Result<(), LoadError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        let count = usize::from(geometry.dimensions) + usize::from(geometry.is_layered);
        // A vector of four elements may stand for fewer coordinates: the others are ignored.
        if parts.len() != count && parts.len() != 4 {
            return Err(at.invalid(format!("expected {count} coordinates")));
        }
        for (index, part) in parts.iter().take(count).enumerate() {
            let is_integer = geometry.is_integer || (geometry.is_layered && index == 0);
            sources.push(self.source(at, part, if is_integer { T::S32 } else { T::F32 })?);
        }
        Ok(())
    }

    pub(super) fn texture(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        match at.instruction.opcode {
            "tex" => self.texture_fetch(at),
            "txq" | "suq" => self.texture_query(at),
            _ => self.surface(at),
        }
    }

    fn texture_fetch(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let is_integer = at.modifiers().last() == Some(&"s32");
        let geometry = geometry(at.modifiers(), is_integer).ok_or_else(|| at.form())?;
        let [target, Operand::Coordinates(parts), further @ ..] = at.all_operands() else {
            return Err(at.invalid("expected a vector and a texture with coordinates"));
        };
        let (count, details) = match at.modifiers() {
            ["level", ..] => (1, "a level of detail"),
            ["grad", ..] => (2, "two gradients"),
            _ => (0, "nothing"),
        };
        if further.len() < count {
            return Err(at.invalid(format!("expected {details} after the coordinates")));
        }
        if further.len() > count {
            return Err(at.unsupported("an offset or a depth to compare with after the coordinates"));
        }
        let (texture, sampler, place) = match parts.as_slice() {
            [texture, place] => (texture, texture, place),
            [texture, sampler, place] => (texture, sampler, place),
            _ => return Err(at.invalid("expected a texture with coordinates")),
        };
        let mut sources = vec![self.handle(at, texture)?, self.handle(at, sampler)?];
        self.coordinates(at, geometry, place, &mut sources)?;
        if matches!(target, Operand::Pair(..)) {
            return Err(at.unsupported("a predicate as second destination"));
        }
        let Operand::Vector(targets) = target else {
            return Err(at.invalid("the destination is not a vector"));
        };
        if targets.len() != 4 {
            return Err(at.invalid("the vector does not have the instruction's width"));
        }
        let targets = targets
            .iter()
            .map(|target| self.target(at, target, Width::W32))
            .collect::<Result<Vec<_>, _>>()?;
        self.emit_skippable(Action::System(SystemCall::Fetch(geometry)), targets, sources);
        Ok(())
    }

    fn texture_query(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let axis = match at.modifiers() {
            ["width", ..] => 0,
            ["height", ..] => 1,
            ["depth" | "array_size", ..] => 2,
            _ => return Err(at.form()),
        };
        let [target, handle] = at.operands()?;
        let handle = self.handle(at, handle)?;
        let target = self.target(at, target, Width::W32)?;
        self.emit_skippable(Action::System(SystemCall::Extent(axis)), vec![target], vec![handle]);
        Ok(())
    }

    fn surface(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let words = at.modifiers();
        let geometry = geometry(words, true).ok_or_else(|| at.form())?;
        let scalar = words.iter().find_map(|word| T::from_name(word)).ok_or_else(|| at.form())?;
        let count = if words.contains(&"v4") {
            4
        } else if words.contains(&"v2") {
            2
        } else {
            1
        };
        let outside = match words.last() {
            Some(&"clamp") => Outside::Clamp,
            Some(&"zero") => Outside::Zero,
            _ => Outside::Trap,
        };
        let store = at.instruction.opcode == "sust";
        let [first, second] = at.operands()?;
        let (place, values) = if store { (first, second) } else { (second, first) };
        let Operand::Coordinates(parts) = place else {
            return Err(at.invalid("expected a surface with coordinates"));
        };
        let [handle, place] = parts.as_slice() else {
            return Err(at.invalid("expected a surface with coordinates"));
        };
        let mut sources = vec![self.handle(at, handle)?];
        self.coordinates(at, geometry, place, &mut sources)?;
        let values = match values {
            Operand::Vector(values) => values.as_slice(),
            single => std::slice::from_ref(single),
        };
        if values.len() != count || scalar.bytes() * count > 16 {
            return Err(at.invalid("the vector does not have the instruction's width"));
        }
        let width = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
        let mut targets = Vec::new();
        for value in values {
            if store {
                sources.push(self.source(at, value, scalar)?);
            } else {
                targets.push(self.target(at, value, width)?);
            }
        }
        let call = SystemCall::Surface {
            geometry,
            element: scalar.bytes() as u8,
            count: count as u8,
            store,
            outside,
        };
        self.emit_skippable(Action::System(call), targets, sources);
        Ok(())
    }
}
