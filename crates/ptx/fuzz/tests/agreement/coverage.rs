//! Every instruction form that occurs in the tests' PTX has an exactness test. Forms that compute have a model, which the tests in
//! `exactness` run. Forms that move data or synchronise threads are run here, on the engine and on the reference machine. The remaining
//! forms are listed with the test that covers them. Random programs must contain the statements that they are meant to test.

use std::collections::BTreeSet;
use std::path::Path;

use sahasra_ptx::{Cancel, Launch, Memory, Module};
use sahasra_ptx_fuzz::generator::Generated;
use sahasra_ptx_fuzz::machine::{self, GlobalMemory, Shape};
use sahasra_ptx_fuzz::model::Model;
use sahasra_ptx_fuzz::{damage, differential, forms};

/// Opcodes that other tests cover, and these tests.
const ELSEWHERE: [(&str, &str); 25] = [
    ("call", "programs: device functions of random programs; compiled::corpus: 18_calls"),
    ("st.param", "programs: arguments and results of device functions"),
    (
        "activemask",
        "compiled::corpus: 03_reduce_warp; which lanes are active is not determined elsewhere",
    ),
    ("bar.arrive", "compiled::kernels: named_barriers_pair_producers_with_consumers"),
    ("trap", "engine::faults"),
    ("cp.async.mbarrier", "engine::transactions; compiled::kernels: cooperation"),
    ("mbarrier", "engine::transactions; compiled::kernels: cooperation"),
    ("elect", "engine::transactions: the_lowest_thread_of_a_mask_is_elected"),
    ("cvta.param", "engine::transactions: parameters_are_read_at_generic_addresses"),
    ("cp.async", "matrices: copies; engine::bulk"),
    ("cp.reduce", "engine::bulk; compiled::kernels: asynchronous"),
    ("st.async", "engine::bulk; compiled::kernels: asynchronous"),
    ("red.async", "engine::bulk; compiled::kernels: asynchronous"),
    ("barrier.cluster", "engine::clusters; compiled::kernels: asynchronous"),
    ("fence.proxy", "engine::bulk; engine::vectors: a_block_is_a_cluster_of_its_own"),
    (
        "ld.shared::cluster",
        "engine::clusters; engine::vectors: a_block_is_a_cluster_of_its_own",
    ),
    ("mapa", "engine::clusters; compiled::kernels: asynchronous"),
    ("getctarank", "engine::clusters; compiled::kernels: asynchronous"),
    ("alloca", "engine::stack; compiled::kernels: asynchronous"),
    ("stacksave", "engine::stack; compiled::kernels: asynchronous"),
    ("stackrestore", "engine::stack; compiled::kernels: asynchronous"),
    ("mma", "matrices: products"),
    ("wmma", "matrices: opaque"),
    ("ldmatrix", "matrices: moves"),
    ("brx", "programs: switches of random programs; compiled::corpus: 25_switch64"),
];

const THREADS: u32 = 64;
/// Bytes of each thread's input, and of its part of each space.
const PLACE: usize = 64;

/// Returns the forms in a text: the first word of each instruction.
fn forms_in(text: &str) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    code.split([';', '{', '}'])
        .filter_map(|statement| {
            let mut words = statement
                .split_whitespace()
                .skip_while(|word| word.ends_with(':') || word.starts_with('@'));
            let word = words.next()?;
            // A name before a separate colon is the prototype of an indirect call.
            if words.next() == Some(":") {
                return None;
            }
            let known = word
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | ':'));
            (known && word.starts_with(|letter: char| letter.is_ascii_lowercase())).then(|| word.to_owned())
        })
        .collect()
}

/// Returns the letter of the registers of a type's width.
fn letter(bits: u32) -> char {
    match bits {
        8 | 16 => 'h',
        32 => 'r',
        _ => 'd',
    }
}

/// Returns statements that use the form, with the registers and addresses of [`kernel`].
fn statements(form: &str) -> Option<String> {
    let words: Vec<&str> = form.split('.').collect();
    let name = words.last()?;
    let bits: u32 = name
        .trim_start_matches(|letter: char| letter.is_ascii_alphabetic())
        .parse()
        .unwrap_or(0);
    let has = |word: &str| words.contains(&word);
    let l = letter(bits);
    let vector = if has("v4") {
        4
    } else if has("v2") {
        2
    } else {
        1
    };
    let list: Vec<String> = (1..=vector).map(|index| format!("%{l}{index}")).collect();
    let list = if vector == 1 {
        list[0].clone()
    } else {
        format!("{{{}}}", list.join(", "))
    };
    let base = if has("shared") {
        "%sh"
    } else if has("local") {
        "%lo"
    } else if has("const") {
        "%ct"
    } else {
        "%out"
    };
    let names_cluster = words.get(1) == Some(&"cluster") || words.iter().any(|word| word.ends_with("::cluster"));
    if names_cluster || has("async") || has("proxy") {
        return None;
    }
    Some(match words[0] {
        "ld" if has("param") && vector * bits <= 64 => format!("{form} {list}, [value];"),
        "ld" => format!("{form} {list}, [{base}+16];"),
        "st" if !has("param") => format!("{form} [{base}+16], {list};"),
        "atom" if vector > 1 => format!("{form} {list}, [{base}+16], {list};"),
        "atom" => {
            let third = if has("cas") { format!(", %{l}3") } else { String::new() };
            // Twice: once where the value compared with is in memory, and once where it is not.
            format!(
                "{form} %{l}4, [{base}+16], %{l}2{third};\nst.global.b{bits} [%out+24], %{l}4;\n{form} %{l}4, [{base}+16], %{l}1{third};"
            )
        }
        "red" => format!("{form} [{base}+16], %{l}2;"),
        "mov" if *name == "pred" => format!("{form} %p1, %p2;"),
        "mov" => format!("{form} %{l}1, %{l}2;"),
        "cvta" if has("param") => return None,
        "cvta" if has("to") => {
            let (generic, space) = if has("local") { ("%log", "local") } else { ("%out", "global") };
            format!("{form} %a, {generic};\nld.{space}.u32 %r1, [%a+8];")
        }
        "cvta" => format!("{form} %a, {base};\nld.u32 %r1, [%a+8];"),
        "membar" | "fence" => format!("{form};\nst.global.u32 [%out+4], %r2;"),
        "nanosleep" => format!("{form} 20;"),
        "bra" => "bra.uni J1;\nmov.u32 %r1, 77;\nJ1:\n@%p1 bra J2;\nmov.u32 %r2, 78;\nJ2:".to_owned(),
        "ret" => "@%p1 bra J1;\nbra J2;\nJ1:\nst.global.u32 [%out], %r3;\nret;\nJ2:".to_owned(),
        "exit" => "@%p1 exit;".to_owned(),
        "bar" | "barrier" if has("warp") => format!("{form} -1;"),
        "bar" | "barrier" if has("popc") => format!("{form} %r1, 2, %p1;"),
        "bar" | "barrier" if has("red") => format!("{form} %p2, 2, %p1;"),
        "bar" | "barrier" if has("sync") => format!("st.shared.u32 [%sh], %r1;\n{form} 3;\nld.shared.u32 %r1, [%other];\n{form} 3;"),
        "shfl" => {
            let clamp = if has("up") { 0 } else { 31 };
            format!("{form} %r1|%p1, %r2, 5, {clamp}, -1;")
        }
        "vote" if has("ballot") => format!("{form} %r1, %p1, -1;"),
        "vote" => format!("{form} %p2, %p1, -1;"),
        "match" if has("any") => format!("and.b32 %r2, %r2, 1;\n{form} %r1, %{l}2, -1;"),
        "match" => format!("{form} %r1|%p1, %{l}2, -1;"),
        "redux" => format!("{form} %r1, %r2, -1;"),
        _ => return None,
    })
}

/// Returns a kernel in which each thread fills its part of every space and its registers from its input, executes the statements, and
/// writes the registers and its parts back.
fn kernel(statements: &str) -> String {
    let mut text = String::from(
        ".version 8.6\n.target sm_100\n.address_size 64\n.const .align 8 .b8 table[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 128, 17, 200, 19, 20, 21, 250, 23, 24};\n\
         .visible .entry k(.param .u64 in, .param .u64 result, .param .align 8 .b8 value[8])\n{\n.reg .pred %p<4>;\n.reg .b16 %h<5>;\n.reg .b32 %r<8>;\n\
         .reg .b64 %d<5>, %in, %out, %sh, %lo, %log, %ct, %a, %other;\n.shared .align 16 .b8 sh[4096];\n.local .align 16 .b8 lo[64];\n\
         ld.param.u64 %in, [in];\nld.param.u64 %out, [result];\nmov.u32 %r5, %tid.x;\nmad.wide.u32 %in, %r5, 64, %in;\nmad.wide.u32 %out, %r5, 256, %out;\n\
         mov.u64 %sh, sh;\nadd.u32 %r6, %r5, 7;\nand.b32 %r6, %r6, 63;\nmad.wide.u32 %other, %r6, 64, %sh;\nmad.wide.u32 %sh, %r5, 64, %sh;\n\
         mov.u64 %lo, lo;\ncvta.local.u64 %log, %lo;\nmov.u64 %ct, table;\n",
    );
    for offset in (0..PLACE).step_by(8) {
        text.push_str(&format!(
            "ld.global.u64 %d1, [%in+{offset}];\nst.global.u64 [%out+{offset}], %d1;\nst.shared.u64 [%sh+{offset}], %d1;\nst.local.u64 [%lo+{offset}], %d1;\n"
        ));
    }
    for index in 1..=4 {
        let offset = (index - 1) * 8;
        text.push_str(&format!(
            "ld.global.b64 %d{index}, [%in+{offset}];\nld.global.b32 %r{index}, [%in+{}];\nld.global.b16 %h{index}, [%in+{}];\n",
            offset + 4,
            offset + 2
        ));
    }
    text.push_str("and.b32 %r6, %r5, 3;\nsetp.eq.u32 %p1, %r6, 1;\nsetp.lt.u32 %p2, %r5, 40;\nbar.sync 0;\n");
    text.push_str(statements);
    text.push('\n');
    for index in 1..=4 {
        let offset = 64 + (index - 1) * 16;
        text.push_str(&format!(
            "st.global.b64 [%out+{offset}], %d{index};\nst.global.b32 [%out+{}], %r{index};\nst.global.b16 [%out+{}], %h{index};\n",
            offset + 8,
            offset + 12
        ));
    }
    text.push_str("selp.u32 %r6, 1, 0, %p1;\nselp.u32 %r7, 2, 0, %p2;\nst.global.v2.u32 [%out+240], {%r6, %r7};\n");
    for offset in (0..PLACE - 8).step_by(8) {
        // Shared and local memory are combined into one value.
        text.push_str(&format!(
            "ld.shared.u64 %d1, [%sh+{offset}];\nld.local.u64 %d2, [%lo+{offset}];\nmad.lo.u64 %d1, %d1, 3, %d2;\nst.global.u64 [%out+{}], %d1;\n",
            128 + offset
        ));
    }
    text.push_str("ret;\n}\n");
    text
}

fn agrees(form: &str, statements: &str) -> Result<(), String> {
    let text = kernel(statements);
    let memory = Memory::new(1 << 20);
    let mut random = fastrand::Rng::with_seed(9);
    // The words are ordinary numbers as floating point of any width.
    let words: Vec<u32> = (0..THREADS as usize * PLACE / 4)
        .map(|_| 0x3f80_0000 | random.u32(..0x40_0000))
        .collect();
    let input: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (source, result) = (
        memory.allocate(input.len() as u64).expect("fits"),
        memory.allocate(256 * u64::from(THREADS)).expect("fits"),
    );
    memory.write(source, &input).expect("inside");
    let mut arguments = source.0.to_le_bytes().to_vec();
    arguments.extend(result.0.to_le_bytes());
    arguments.extend(0x8182_f3f4_0506_0708u64.to_le_bytes());
    let instance = Module::load(&text)
        .map_err(|error| format!("{form}: {error}"))?
        .instantiate(&memory)
        .expect("fits");
    instance
        .entry("k")
        .expect("the kernel")
        .launch(&Launch::new([1, 1, 1], [THREADS, 1, 1]), &arguments, &memory, &Cancel::new())
        .map_err(|fault| format!("{form}: {fault}"))?;
    let mut found = vec![0; 256 * THREADS as usize];
    memory.read(result, &mut found).expect("inside");

    let mut reference = GlobalMemory::default();
    reference.add(source.0, input);
    reference.add(result.0, vec![0; found.len()]);
    let shape = Shape {
        grid: [1, 1, 1],
        block: [THREADS, 1, 1],
        dynamic_shared: 0,
        step_limit: 10_000_000,
    };
    let program = machine::parse(&text).map_err(|error| format!("{form}: {error}"))?;
    machine::run(&program, "k", shape, &arguments, &mut reference).map_err(|error| format!("{form}: {error}"))?;
    let expected = reference.region(result.0).expect("the result");
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(place) => Err(format!("{form}: byte {} of thread {} differs", place % 256, place / 256)),
    }
}

#[test]
fn every_form_in_the_tests_is_covered_and_agrees() {
    let corpus = damage::corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")).expect("the corpus");
    let found: BTreeSet<String> = corpus.iter().flat_map(|text| forms_in(text)).collect();
    assert!(found.len() > 510, "only {} forms found", found.len());
    let modelled: BTreeSet<String> = forms::all().into_iter().collect();
    let (mut by_model, mut run_here, mut elsewhere, mut wrong) = (0, 0, 0, Vec::new());
    for form in &found {
        if modelled.contains(form) {
            assert!(Model::of(form).is_some());
            by_model += 1;
        } else if let Some(statements) = statements(form) {
            run_here += 1;
            if let Err(difference) = agrees(form, &statements) {
                wrong.push(difference);
            }
        } else if ELSEWHERE.iter().any(|(start, _)| form.starts_with(start)) {
            elsewhere += 1;
        } else {
            wrong.push(format!("{form} has no test"));
        }
    }
    println!(
        "{} forms: {by_model} by models, {run_here} here, {elsewhere} elsewhere",
        found.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Number of programs among which each statement of [`expected`] must occur.
const PROGRAMS: u64 = 4000;

/// Returns the lines that random programs must contain. `*` stands for any text, registers `%m…` hold masks of some of a warp's lanes, and
/// `itself` is the function that contains the line.
fn expected() -> Vec<String> {
    let mut found: Vec<String> = [
        // Threads that end or return early.
        "@%q2 exit;",
        "@%q2 ret;",
        "@%p* ret;",
        "shfl.sync.idx.b32 *, %t3;",
        // Calls: under a guard, through tables and pointers, and of the function itself.
        "@%p* call (back), f*;",
        "@!%p* call (back), %e5, *;",
        "call (back), itself, *;",
        "call (back), %e5, *, shape;",
        "call (back), %e5, *, L*;",
        "L*: .calltargets f0, f1, f2;",
        "ld.global.u64 %e5, [%e5];",
        "selp.b64 %e5, %e5, %e6, %p*;",
        // Barriers with counts, and arrivals that do not wait.
        "bar.sync *, 32;",
        "bar.sync %t0, *;",
        "bar.arrive *, 64;",
        "bar.red.popc.u32 *, *, *, %p*;",
        "bar.red.and.pred *, *, *, %p*;",
        "bar.red.or.pred *, *, *, !%p*;",
        "barrier.sync.aligned *, *;",
        // Branches over tables, and loops in which the mask of the remaining lanes is known.
        "brx.idx *;",
        "vote.sync.ballot.b32 %m*, %q3, %m*;",
        "mov.b32 {%h*, %h*}, %r*;",
        "madc.hi.cc.u64 *;",
        "subc.u32 *;",
        "ld.const.b64 *;",
        "ld.global.nc.b16 *;",
        "red*.global.add.v2.f32 *;",
        "atom*.global.add.v2.f32 *;",
    ]
    .map(str::to_owned)
    .into();
    let mut each = |start: &str, words: &[&str], end: &str| found.extend(words.iter().map(|word| format!("{start}{word}{end}")));
    each("shfl.sync.", &["up", "down", "bfly", "idx"], ".b32 *, %m*;");
    each("shfl.sync.", &["up", "down", "bfly", "idx"], ".b32 %r*|%p*, *, %full;");
    each("vote.sync.", &["ballot.b32", "all.pred", "any.pred", "uni.pred"], " *, %m*;");
    each(
        "match.",
        &["any.sync.b32", "any.sync.b64", "all.sync.b32", "all.sync.b64"],
        " *, %m*;",
    );
    let reductions = [
        "add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32",
    ];
    each("redux.sync.", &reductions, " *, %m*;");
    each("bar.warp.sync ", &["%m*", "%full"], ";");
    each("isspacep.", &["shared", "local", "global"], " *;");
    each("cvta.to.", &["shared", "local"], ".u64 *;");
    for opcode in ["ld", "st"] {
        for space in [".global", ".shared", ".local", ""] {
            for vector in ["v2.b64", "v2.f64", "v4.b32", "v4.f32", "v4.s16", "v4.u8", "s8", "b64"] {
                each("", &[opcode], &format!("{space}.{vector} *;"));
            }
        }
        each(&format!("{opcode}.global."), &["v8.b32", "v8.f32", "v4.b64", "v4.f64"], " *;");
        each(&format!("{opcode}.volatile."), &["global", "shared"], ".*;");
    }
    let shared = [
        "add.u32",
        "add.s32",
        "add.u64",
        "add.f32",
        "add.f64",
        "add.noftz.f16",
        "add.noftz.bf16",
        "add.noftz.f16x2",
        "add.noftz.bf16x2",
        "min.u32",
        "min.s32",
        "min.u64",
        "min.s64",
        "max.u32",
        "max.s32",
        "max.u64",
        "max.s64",
        "and.b32",
        "and.b64",
        "or.b32",
        "or.b64",
        "xor.b32",
        "xor.b64",
        "inc.u32",
        "dec.u32",
    ];
    let returning = ["exch.b32", "exch.b64", "cas.b16", "cas.b32", "cas.b64"];
    for space in ["global", "shared"] {
        let base = if space == "global" { "[%sums+*" } else { "[%acc+*" };
        each(&format!("red*.{space}."), &shared, &format!(" {base};"));
        each(&format!("atom*.{space}."), &shared, &format!(" *{base};"));
        each(&format!("atom*.{space}."), &returning, &format!(" *{base};"));
        // A loop around a compare-and-swap.
        each(&format!("atom*.{space}."), &["cas.b32"], &format!(" %t2, {base}, %t0, %t1;"));
        // With its own memory, a thread may use the old value.
        let alone: Vec<&str> = shared.into_iter().filter(|name| !name.contains('f')).chain(returning).collect();
        each(&format!("atom.{space}."), &alone, " %*;");
    }
    found
}

fn is_match(pattern: &str, line: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == line;
    };
    let Some(behind) = line.strip_prefix(start) else { return false };
    behind.char_indices().any(|(at, _)| is_match(rest, &behind[at..])) || is_match(rest, "")
}

#[test]
fn random_programs_have_what_compilers_emit() {
    let vocabulary = differential::vocabulary();
    let mut missing = expected();
    for seed in 0..PROGRAMS {
        let text = Generated::new(seed, &vocabulary).text();
        let mut function = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix(".func (.param .b32 result) ") {
                function = format!("(back), {},", rest.split(' ').next().unwrap_or_default());
            } else if line.starts_with(".visible") {
                function.clear();
            }
            let line = if function.is_empty() || !line.contains(&function) {
                line.to_owned()
            } else {
                line.replace(&function, "(back), itself,")
            };
            // A guard matters only if the pattern has one.
            let plain = line
                .split_once(' ')
                .filter(|_| line.starts_with('@'))
                .map_or(line.as_str(), |(_, rest)| rest);
            missing.retain(|pattern| !is_match(pattern, &line) && !is_match(pattern, plain));
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("not in {PROGRAMS} programs: {}", missing.join("\n"));
}
