//! The texts of a module, and what each name means in each text (PTX ISA §11.6 linking directives).
//!
//! A name that its own text defines is that definition. A name that the text only declares is the definition of another text, if one is
//! `.visible`, `.weak` or `.common` there. A strong definition takes precedence over weak and common ones.

use hashbrown::{HashMap, HashSet};
use std::ops::Range;

use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind, Position};
use sahasra_ptx_syntax::instructions::Dialect;
use sahasra_ptx_syntax::syntax::{Function, Linkage, Registers, Source, Variable};
use sahasra_ptx_syntax::types::ScalarType;

/// A function or variable, and the index in `Texts::sources` of the text that declares it.
type Of<'a, T> = (&'a T, usize);

type Definitions<'a> = HashMap<&'a str, Definition>;

pub(crate) struct Texts<'a> {
    pub(crate) sources: &'a [Source<'a>],
    pub(crate) functions: Vec<Of<'a, Function<'a>>>,
    /// Variables with static storage. Those of a text at module scope precede those that its functions declare.
    pub(crate) variables: Vec<Of<'a, Variable<'a>>>,
    /// Whether a text declares vector registers, or registers of 128 bits, at module scope.
    pub(crate) has_vectors: bool,
    places: Vec<Places>,
    names: Vec<Names<'a>>,
}

/// Indices of what one text declares.
struct Places {
    functions: Range<usize>,
    variables: Range<usize>,
    /// Index of the first variable that the functions of the text declare.
    statics: usize,
}

/// What names mean in one text.
#[derive(Default)]
struct Names<'a> {
    /// Functions and kernels, defined or not.
    declared: HashSet<&'a str>,
    functions: HashMap<&'a str, usize>,
    variables: HashMap<&'a str, usize>,
    registers: HashMap<&'a str, &'a Registers<'a>>,
}

/// A definition that other texts may name.
#[derive(Clone, Copy)]
struct Definition {
    index: usize,
    is_strong: bool,
}

impl<'a> Texts<'a> {
    /// # Errors
    /// A name that two texts define, with the index of the second text.
    pub(crate) fn new(sources: &'a [Source<'a>]) -> Result<Self, (usize, LoadError)> {
        let mut texts = Self {
            sources,
            functions: Vec::new(),
            variables: Vec::new(),
            has_vectors: false,
            places: Vec::new(),
            names: Vec::new(),
        };
        for (text, source) in sources.iter().enumerate() {
            let (first_function, first_variable) = (texts.functions.len(), texts.variables.len());
            texts.functions.extend(source.functions.iter().map(|function| (function, text)));
            texts.variables.extend(source.variables.iter().map(|variable| (variable, text)));
            texts.places.push(Places {
                functions: first_function..texts.functions.len(),
                variables: first_variable..texts.variables.len(),
                statics: texts.variables.len(),
            });
            texts.variables.extend(source.statics.iter().map(|variable| (variable, text)));
        }
        let mut registers = sources.iter().flat_map(|source| &source.registers);
        texts.has_vectors = registers.any(|registers| registers.elements > 1 || registers.scalar == ScalarType::B128);
        let (functions, variables) = texts.shared()?;
        texts.names = (0..sources.len()).map(|text| texts.seen_by(text, &functions, &variables)).collect();
        Ok(texts)
    }

    /// Collects the functions and the variables that other texts may name.
    fn shared(&self) -> Result<(Definitions<'a>, Definitions<'a>), (usize, LoadError)> {
        let (mut functions, mut variables) = (HashMap::new(), HashMap::new());
        for (index, (function, text)) in self.functions.iter().enumerate() {
            if function.body.is_some() && !function.is_entry {
                add(&mut functions, index, *text, function.name, function.linkage, function.position)?;
            }
        }
        for index in self.places.iter().flat_map(|places| places.variables.clone()) {
            let (variable, text) = self.variables[index];
            add(&mut variables, index, text, variable.name, variable.linkage, variable.position)?;
        }
        Ok((functions, variables))
    }

    fn seen_by(&self, text: usize, functions: &Definitions<'_>, variables: &Definitions<'_>) -> Names<'a> {
        let mut names = Names::default();
        for index in self.places[text].functions.clone() {
            let (function, _) = self.functions[index];
            names.declared.insert(function.name);
            let replaced = function.body.is_none() || matches!(function.linkage, Linkage::Weak | Linkage::Common);
            let elsewhere = functions.get(function.name).filter(|_| replaced).map(|found| found.index);
            if !function.is_entry && (function.body.is_some() || elsewhere.is_some()) {
                names.functions.insert(function.name, elsewhere.unwrap_or(index));
            }
        }
        for (name, function) in &self.sources[text].aliases {
            if let Some(index) = names.functions.get(function).copied() {
                names.functions.insert(name, index);
            }
        }
        for index in self.places[text].variables.clone() {
            let (variable, _) = self.variables[index];
            let replaced = !matches!(variable.linkage, Linkage::Private | Linkage::Visible);
            let elsewhere = variables.get(variable.name).filter(|_| replaced).map(|found| found.index);
            names.variables.insert(variable.name, elsewhere.unwrap_or(index));
        }
        names.registers = self.sources[text]
            .registers
            .iter()
            .map(|registers| (registers.name, registers))
            .collect();
        names
    }

    /// Returns the defined function of this name.
    pub(crate) fn function(&self, text: usize, name: &str) -> Option<usize> {
        self.names[text].functions.get(name).copied()
    }

    /// Whether the text declares a function or kernel of this name.
    pub(crate) fn declares(&self, text: usize, name: &str) -> bool {
        self.names[text].declared.contains(name)
    }

    /// Returns the module-scope variable of this name: a definition, or an external declaration that no text defines.
    pub(crate) fn variable(&self, text: usize, name: &str) -> Option<usize> {
        self.names[text].variables.get(name).copied()
    }

    /// Returns the variable that a function of the text declares with static storage.
    pub(crate) fn static_variable(&self, text: usize, index: usize) -> usize {
        self.places[text].statics + index
    }

    /// Whether the variable at `index` is what its name means in its text, or is declared in a function.
    pub(crate) fn is_used(&self, text: usize, index: usize) -> bool {
        index >= self.places[text].statics || self.variable(text, self.variables[index].0.name) == Some(index)
    }

    /// Returns the module-scope declaration of registers with this name or prefix.
    pub(crate) fn registers(&self, text: usize, name: &str) -> Option<&'a Registers<'a>> {
        self.names[text].registers.get(name).copied()
    }

    pub(crate) fn dialect(&self, text: usize) -> Dialect {
        Dialect::of(&self.sources[text])
    }
}

fn add<'a>(
    found: &mut HashMap<&'a str, Definition>,
    index: usize,
    text: usize,
    name: &'a str,
    linkage: Linkage,
    position: Position,
) -> Result<(), (usize, LoadError)> {
    let is_strong = match linkage {
        Linkage::Private | Linkage::External => return Ok(()),
        Linkage::Visible => true,
        Linkage::Weak | Linkage::Common => false,
    };
    match found.get(name) {
        Some(other) if other.is_strong && is_strong => {
            let reason = LoadErrorKind::Invalid("two definitions of this name are .visible".into());
            return Err((text, LoadError::new(position, name, reason)));
        }
        Some(other) if other.is_strong || !is_strong => {}
        _ => {
            found.insert(name, Definition { index, is_strong });
        }
    }
    Ok(())
}
