//! Data movement: mov, cvta, ld, st (PTX ISA §9.7.9).

use super::convert::resize;
use super::{At, Lowering};
use crate::compile::ir::{Access, Action, Origin, RegisterId, Width};
use crate::execute::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW};
use crate::lanes::integer as int;
use crate::lanes::{binary, logic, relation, select, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

impl<'a> Lowering<'a> {
    /// `mov` (PTX ISA §9.7.9.3), and its packing and unpacking forms (§9.7.9.4).
    pub(super) fn mov(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (_, rest) = at.split(&["v2", "v4"]);
        let scalar = at.one_type(&rest)?;
        let [target, source] = at.operands()?;
        match (target, source) {
            (Operand::Vector(targets), Operand::Vector(sources)) => self.move_elements(at, scalar, targets, sources),
            (Operand::Vector(targets), Operand::Name(name, 0)) if matches!(*name, "%tid" | "%ntid" | "%ctaid" | "%nctaid") => {
                let parts = ["x", "y", "z", "w"].into_iter().take(targets.len());
                let sources: Vec<_> = parts.map(|part| Operand::Component(name, part)).collect();
                self.move_elements(at, scalar, targets, &sources)
            }
            _ if rest.len() != at.modifiers().len() => Err(at.invalid("expected two vectors")),
            (Operand::Vector(parts), _) => self.unpack(at, scalar, parts, source),
            (_, Operand::Vector(parts)) => self.pack(at, scalar, target, parts),
            _ => {
                let width = Width::of_bytes(scalar.bytes())
                    .filter(|_| scalar.bytes() != 1)
                    .ok_or_else(|| at.form())?;
                let source = self.source(at, source, scalar)?;
                let target = self.target(at, target, width)?;
                self.emit(Action::Copy, vec![target], vec![source]);
                Ok(())
            }
        }
    }

    /// Copies vectors. All sources are read before any target is written.
    fn move_elements(&mut self, at: At<'a, '_>, scalar: T, targets: &[Operand<'a>], sources: &[Operand<'a>]) -> Result<(), LoadError> {
        let count = match at.modifiers().first() {
            Some(&"v2" | &"b128") => 2,
            Some(&"v4") => 4,
            _ => return Err(at.invalid("a vector is moved by `.v2` or `.v4`")),
        };
        if targets.len() != count || sources.len() != count {
            return Err(at.invalid("the vector does not have the instruction's width"));
        }
        let scalar = if scalar == T::B128 { T::B64 } else { scalar };
        let width = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
        let guard = self.guard.take();
        let mut values = Vec::new();
        for source in sources {
            let (value, source) = (self.new_register(width), self.source(at, source, scalar)?);
            self.emit(Action::Copy, vec![value], vec![source]);
            values.push(value);
        }
        self.guard = guard;
        for (target, value) in targets.iter().zip(values) {
            let target = self.target(at, target, width)?;
            self.emit(Action::Copy, vec![target], vec![value]);
        }
        Ok(())
    }

    fn part_type(at: At<'a, '_>, scalar: T, parts: usize) -> Result<(T, Width), LoadError> {
        match (scalar.bytes(), parts) {
            (2, 2) | (4, 4) => Ok((T::B8, Width::W16)),
            (4, 2) | (8, 4) => Ok((T::B16, Width::W16)),
            (8, 2) => Ok((T::B32, Width::W32)),
            _ => Err(at.form()),
        }
    }

    fn unpack(&mut self, at: At<'a, '_>, scalar: T, parts: &[Operand<'a>], source: &Operand<'a>) -> Result<(), LoadError> {
        let (part, width) = Self::part_type(at, scalar, parts.len())?;
        let source = self.source(at, source, scalar)?;
        if part == T::B8 {
            return self.unpack_bytes(at, scalar, parts, source);
        }
        let targets = parts
            .iter()
            .map(|part| self.target(at, part, width))
            .collect::<Result<Vec<_>, _>>()?;
        let guard = self.guard.take();
        let low = |from: Width| resize(from, false, width).ok_or_else(|| at.form());
        // Targets are narrower than the source and so cannot be the source register: writing them in order is safe.
        if let [first, second, third, fourth] = targets[..] {
            let (lower, upper) = (self.new_register(Width::W32), self.new_register(Width::W32));
            self.lane(unary::<crate::lanes::convert::Resize<u64, u32>>(), lower, &[source]);
            self.lane(unary::<select::Upper<u32, u64>>(), upper, &[source]);
            self.guard = guard;
            for (half, low_part, high_part) in [(lower, first, second), (upper, third, fourth)] {
                self.lane(low(Width::W32)?, low_part, &[half]);
                self.lane(unary::<select::Upper<u16, u32>>(), high_part, &[half]);
            }
        } else if let [first, second] = targets[..] {
            self.guard = guard;
            let upper = if width == Width::W16 {
                unary::<select::Upper<u16, u32>>()
            } else {
                unary::<select::Upper<u32, u64>>()
            };
            let from = self.width(source);
            self.lane(low(from)?, first, &[source]);
            self.lane(upper, second, &[source]);
        }
        Ok(())
    }

    /// `mov.b32 {a, b, c, d}, e` and `mov.b16 {a, b}, e`, with bytes.
    fn unpack_bytes(&mut self, at: At<'a, '_>, scalar: T, parts: &[Operand<'a>], source: RegisterId) -> Result<(), LoadError> {
        let guard = self.guard.take();
        let mut word = source;
        if scalar.bytes() == 2 {
            word = self.new_register(Width::W32);
            self.lane(unary::<crate::lanes::convert::Resize<u16, u32>>(), word, &[source]);
        }
        let mut bytes = Vec::new();
        for index in 0..parts.len() as u64 {
            let (shifted, byte) = (self.new_register(Width::W32), self.new_register(Width::W16));
            let (amount, mask) = (self.constant(Width::W32, 8 * index), self.constant(Width::W32, 0xff));
            self.lane(binary::<int::ShiftRight<u32>>(), shifted, &[word, amount]);
            let kept = self.new_register(Width::W32);
            self.lane(binary::<int::And<u32>>(), kept, &[shifted, mask]);
            self.lane(unary::<crate::lanes::convert::Resize<u32, u16>>(), byte, &[kept]);
            bytes.push(byte);
        }
        self.guard = guard;
        for (part, byte) in parts.iter().zip(bytes) {
            let target = self.target(at, part, Width::W16)?;
            self.emit(Action::Copy, vec![target], vec![byte]);
        }
        Ok(())
    }

    fn pack_bytes(&mut self, at: At<'a, '_>, scalar: T, target: &Operand<'a>, parts: &[Operand<'a>]) -> Result<(), LoadError> {
        let guard = self.guard.take();
        let mut word = self.zero(Width::W32);
        for (index, part) in parts.iter().enumerate() {
            let byte = self.source(at, part, T::B8)?;
            let [wide, kept, shifted, joined] = [(); 4].map(|()| self.new_register(Width::W32));
            let (amount, mask) = (self.constant(Width::W32, 8 * index as u64), self.constant(Width::W32, 0xff));
            self.lane(unary::<crate::lanes::convert::Resize<u16, u32>>(), wide, &[byte]);
            self.lane(binary::<int::And<u32>>(), kept, &[wide, mask]);
            self.lane(binary::<int::ShiftLeft<u32>>(), shifted, &[kept, amount]);
            self.lane(binary::<int::Or<u32>>(), joined, &[word, shifted]);
            word = joined;
        }
        self.guard = guard;
        if scalar.bytes() == 2 {
            let target = self.target(at, target, Width::W16)?;
            self.lane(unary::<crate::lanes::convert::Resize<u32, u16>>(), target, &[word]);
            return Ok(());
        }
        let target = self.target(at, target, Width::W32)?;
        self.emit(Action::Copy, vec![target], vec![word]);
        Ok(())
    }

    fn pack(&mut self, at: At<'a, '_>, scalar: T, target: &Operand<'a>, parts: &[Operand<'a>]) -> Result<(), LoadError> {
        let (part, width) = Self::part_type(at, scalar, parts.len())?;
        if part == T::B8 {
            return self.pack_bytes(at, scalar, target, parts);
        }
        let mut values = parts
            .iter()
            .map(|operand| self.source(at, operand, part))
            .collect::<Result<Vec<_>, _>>()?;
        let whole = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
        let target = self.target(at, target, whole)?;
        if let [first, second, third, fourth] = values[..] {
            let guard = self.guard.take();
            let (low, high) = (self.new_register(Width::W32), self.new_register(Width::W32));
            self.lane(binary::<select::Pack<u16, u32>>(), low, &[first, second]);
            self.lane(binary::<select::Pack<u16, u32>>(), high, &[third, fourth]);
            self.guard = guard;
            values = vec![low, high];
        }
        let function = if width == Width::W16 && whole == Width::W32 {
            binary::<select::Pack<u16, u32>>()
        } else {
            binary::<select::Pack<u32, u64>>()
        };
        self.lane(function, target, &values);
        Ok(())
    }

    /// `cvta` (PTX ISA §9.7.9.20): shared and local memory are windows of the generic space; all other addresses are unchanged.
    pub(super) fn cvta(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (to, rest) = at.split(&["to"]);
        let [space, "u64"] = rest.as_slice() else {
            return Err(at.form());
        };
        let [target, source] = at.operands()?;
        let source = match source {
            // `cvta.global.u64 %rd1, variable`
            Operand::Name(..) | Operand::Constant(_) => self.source(at, source, T::U64)?,
            _ => return Err(at.invalid("expected a register or a variable")),
        };
        let target = self.target(at, target, Width::W64)?;
        let window = match *space {
            "global" | "const" => None,
            "shared" | "shared::cta" => Some(SHARED_WINDOW),
            "local" => Some(LOCAL_WINDOW),
            "param" | "param::entry" if self.context.number.is_none() => Some(PARAMETER_WINDOW),
            "param" | "param::entry" => return Err(at.unsupported("parameters of functions at generic addresses")),
            _ => return Err(at.form()),
        };
        match window {
            None => self.emit(Action::Copy, vec![target], vec![source]),
            Some(window) => {
                let shift = if to.is_empty() { window } else { window.wrapping_neg() };
                let window = self.constant(Width::W64, shift);
                self.lane(binary::<int::Add<u64>>(), target, &[source, window]);
            }
        }
        Ok(())
    }

    /// `isspacep` (PTX ISA §9.7.9.19): compares the address with the bounds of the windows in the generic space.
    pub(super) fn is_space(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let [space] = at.modifiers() else { return Err(at.form()) };
        let [target, source] = at.operands()?;
        let source = self.source(at, source, T::U64)?;
        let target = self.target(at, target, Width::Predicate)?;
        let [shared, local, parameter] = [SHARED_WINDOW, LOCAL_WINDOW, PARAMETER_WINDOW].map(|start| self.constant(Width::W64, start));
        let (below, from) = (relation::<int::Less<u64>>(), relation::<int::GreaterOrEqual<u64>>());
        match *space {
            "global" => self.lane(below, target, &[source, shared]),
            // Constants are in global memory here.
            "const" => {
                let never = self.constant(Width::Predicate, 0);
                self.emit(Action::Copy, vec![target], vec![never]);
            }
            "param" | "param::entry" => self.lane(from, target, &[source, parameter]),
            "local" | "shared" | "shared::cta" => {
                let (start, end) = if *space == "local" { (local, parameter) } else { (shared, local) };
                let [above, under] = [(); 2].map(|()| self.new_register(Width::Predicate));
                let guard = self.guard.take();
                self.lane(from, above, &[source, start]);
                self.lane(below, under, &[source, end]);
                self.guard = guard;
                self.lane(logic::<select::PredicateAnd>(), target, &[above, under]);
            }
            _ => return Err(at.form()),
        }
        Ok(())
    }

    /// `createpolicy` (PTX ISA §9.7.9.18): cache policies change no values, so each policy is 0.
    pub(super) fn create_policy(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if !matches!(at.modifiers(), ["fractional" | "range" | "cvt", .., "b64"]) {
            return Err(at.form());
        }
        let target = at.all_operands().first().ok_or_else(|| at.invalid("expected a destination"))?;
        let target = self.target(at, target, Width::W64)?;
        let zero = self.zero(Width::W64);
        self.emit(Action::Copy, vec![target], vec![zero]);
        Ok(())
    }

    /// Parses state space, order and vector width of `ld` and `st`.
    fn access(&mut self, at: At<'a, '_>) -> Result<(Access, T), LoadError> {
        let mut access = Access {
            space: Space::Generic,
            element: 0,
            count: 1,
            signed: false,
            offset: 0,
            ordered: false,
        };
        let mut scalar = None;
        for word in at.modifiers() {
            match *word {
                "global" => access.space = Space::Global,
                "shared" | "shared::cta" => access.space = Space::Shared,
                "local" => access.space = Space::Local,
                "const" => access.space = Space::Constant,
                "param" | "param::entry" => access.space = Space::Parameter,
                "param::func" => access.space = Space::Local,
                "volatile" | "relaxed" | "acquire" | "release" | "mmio" => access.ordered = true,
                "weak" | "nc" | "cta" | "gpu" | "sys" | "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "uni" => {}
                "v2" => access.count = 2,
                "v4" => access.count = 4,
                "v8" => access.count = 8,
                // Cache hints change no values. A cache policy is an additional operand.
                hint if hint.starts_with("L1::") || hint.starts_with("L2::") => {}
                // Registers of 128 bits are pairs of 64.
                "b128" => (scalar, access.count) = (Some(T::B64), 2),
                other => match T::from_name(other) {
                    Some(found) if scalar.is_none() && found.bytes() <= 8 && found != T::Pred => scalar = Some(found),
                    _ => return Err(at.form()),
                },
            }
        }
        let scalar = scalar.ok_or_else(|| at.form())?;
        access.element = scalar.bytes() as u8;
        access.signed = scalar.is_signed();
        if usize::from(access.count) * scalar.bytes() > 32 {
            return Err(at.form());
        }
        Ok((access, scalar))
    }

    /// `ld` (PTX ISA §9.7.9.8, §9.7.9.9).
    pub(super) fn load(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (mut access, scalar) = self.access(at)?;
        let [target, address] = at.operands_before_policy()?;
        let elements = match target {
            Operand::Vector(elements) => elements.as_slice(),
            single => std::slice::from_ref(single),
        };
        if elements.len() != usize::from(access.count) {
            return Err(at.invalid("the vector does not have the instruction's width"));
        }
        let natural = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
        let targets = elements
            .iter()
            .map(|element| self.any_target(at, element, natural))
            .collect::<Result<Vec<_>, _>>()?;
        if targets.iter().any(|register| self.width(*register).bytes() < scalar.bytes()) {
            return Err(at.invalid("the destination is narrower than the type"));
        }
        let place = self.address(at, address)?;
        if let Some(space) = place.space.filter(|_| access.space == Space::Generic) {
            access.space = space;
        }
        // Parameters of functions and calls are in local memory.
        if access.space == Space::Parameter && (self.context.number.is_some() || place.space == Some(Space::Local)) {
            access.space = Space::Local;
        }
        if access.space == Space::Parameter
            && let Some((offset, left)) = place.parameter
        {
            return self.load_parameter(at, &targets, offset, left, scalar);
        }
        access.offset = place.offset;
        let first = targets.first().map(|register| self.width(*register));
        if targets.iter().any(|register| Some(self.width(*register)) != first) {
            return Err(at.unsupported("vector elements of different widths"));
        }
        self.emit(Action::Load(access), targets, vec![place.register]);
        Ok(())
    }

    /// Loads a kernel parameter that is named directly. Its value is known when the launch starts.
    fn load_parameter(&mut self, at: At<'a, '_>, targets: &[RegisterId], offset: u32, left: u32, scalar: T) -> Result<(), LoadError> {
        let bytes = scalar.bytes() as u32;
        if bytes * targets.len() as u32 > left {
            return Err(at.invalid("the access goes past the parameter"));
        }
        if !offset.is_multiple_of(bytes) {
            return Err(at.invalid("the access is not aligned"));
        }
        for (index, target) in targets.iter().enumerate() {
            let width = self.width(*target);
            let origin = Origin::Parameter {
                offset: offset + bytes * index as u32,
                bytes: bytes as u8,
                signed: scalar.is_signed(),
            };
            let value = self.fixed(width, origin);
            self.emit(Action::Copy, vec![*target], vec![value]);
        }
        Ok(())
    }

    /// `st` (PTX ISA §9.7.9.11).
    pub(super) fn store(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (mut access, scalar) = self.access(at)?;
        let [address, value] = at.operands_before_policy()?;
        let elements = match value {
            Operand::Vector(elements) => elements.as_slice(),
            single => std::slice::from_ref(single),
        };
        if elements.len() != usize::from(access.count) {
            return Err(at.invalid("the vector does not have the instruction's width"));
        }
        let place = self.address(at, address)?;
        if let Some(space) = place.space.filter(|_| matches!(access.space, Space::Generic | Space::Parameter)) {
            access.space = space;
        }
        if access.space == Space::Parameter && self.context.number.is_some() {
            access.space = Space::Local;
        }
        if matches!(access.space, Space::Constant | Space::Parameter) {
            return Err(at.form());
        }
        access.offset = place.offset;
        let natural = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
        let mut sources = vec![place.register];
        for element in elements {
            let mut value = self.any_source(at, element, scalar)?;
            if self.width(value).bytes() < scalar.bytes() {
                return Err(at.invalid("the value is narrower than the type"));
            }
            if self.width(value) != natural {
                let narrowed = self.new_register(natural);
                let guard = self.guard.take();
                self.lane(
                    resize(self.width(value), false, natural).ok_or_else(|| at.form())?,
                    narrowed,
                    &[value],
                );
                self.guard = guard;
                value = narrowed;
            }
            sources.push(value);
        }
        self.emit(Action::Store(access), vec![], sources);
        Ok(())
    }
}
