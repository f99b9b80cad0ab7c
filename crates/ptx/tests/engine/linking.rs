//! Several texts linked to one module, and variables that persist.

use sahasra_ptx::{ArgumentList, Cancel, Launch, LinkError, Memory, Module};

use crate::vectors::run;

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

const KERNEL: &str = ".extern .global .align 4 .b32 shared_count;
    .extern .func (.param .b32 r) scale(.param .b32 x);
    .func (.param .b32 r) private(.param .b32 x) { .reg .b32 v; ld.param.b32 v, [x]; add.u32 v, v, 1; st.param.b32 [r], v; ret; }
    .visible .entry k(.param .u64 out) {
        .reg .pred p; .reg .b32 %r<9>; .reg .b64 %rd<3>;
        ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd1, %r1, 4, %rd1;
        { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), scale, (a); ld.param.b32 %r2, [b]; }
        { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), private, (a); ld.param.b32 %r2, [b]; }
        setp.eq.u32 p, %r1, 0; @p red.global.add.u32 [shared_count], 1;
        bar.warp.sync -1;
        ld.volatile.global.u32 %r3, [shared_count]; mad.lo.u32 %r2, %r3, 1000, %r2;
        st.global.u32 [%rd1], %r2; ret; }";

const LIBRARY: &str = ".visible .global .align 4 .b32 shared_count = 5;
    .func (.param .b32 r) private(.param .b32 x) { .reg .b32 v; ld.param.b32 v, [x]; mul.lo.u32 v, v, 3; st.param.b32 [r], v; ret; }
    .visible .func (.param .b32 r) scale(.param .b32 x) {
        .reg .b32 v; ld.param.b32 v, [x];
        { .param .b32 a; .param .b32 b; st.param.b32 [a], v; call (b), private, (a); ld.param.b32 v, [b]; }
        st.param.b32 [r], v; ret; }";

fn link(texts: &[&str]) -> Result<Module, LinkError> {
    let texts: Vec<String> = texts.iter().map(|text| format!("{HEAD}{text}")).collect();
    Module::link(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn declarations_of_one_text_are_the_definitions_of_another() {
    // Each text has a function `private` of its own. The variable has counted both launches.
    let expected: Vec<u32> = (0..32).map(|thread| 7000 + 3 * thread + 1).collect();
    for texts in [[KERNEL, LIBRARY], [LIBRARY, KERNEL]] {
        assert_eq!(run(&link(&texts).expect("links")), expected);
    }
    let error = link(&[KERNEL]).expect_err("nothing defines it");
    assert!(error.to_string().contains("external function scale"), "{error}");
    let error = link(&[LIBRARY, KERNEL, LIBRARY]).expect_err("defined twice");
    assert_eq!(error.text, 2);
}

#[test]
fn strong_definitions_replace_weak_ones() {
    let weak = ".weak .func (.param .b32 r) scale(.param .b32 x) { .reg .b32 v; mov.u32 v, 77; st.param.b32 [r], v; ret; }
                .common .global .align 4 .b32 shared_count;";
    let expected: Vec<u32> = (0..32).map(|thread| 7000 + 3 * thread + 1).collect();
    for texts in [[weak, LIBRARY, KERNEL], [KERNEL, LIBRARY, weak]] {
        let module = link(&texts).expect("links");
        assert_eq!(run(&module), expected);
        assert_eq!(module.variable_bytes(), 4);
    }
    assert_eq!(run(&link(&[KERNEL, weak, weak]).expect("links")), vec![2078; 32]);
}

#[test]
fn an_alias_is_a_second_name_of_a_function() {
    let library = LIBRARY.replace(".func (.param .b32 r) scale", ".func (.param .b32 r) original");
    let module = link(&[&format!(
        "{library} .visible .func (.param .b32 r) scale(.param .b32 x); .alias scale, original; {}",
        KERNEL
            .replace(".extern", ".visible")
            .replace(".visible .global .align 4 .b32 shared_count;", "")
            .replace("private", "other")
    )]);
    assert_eq!(run(&module.expect("loads"))[2], 7000 + 6 + 1);
}

#[test]
fn errors_tell_the_text_and_its_line() {
    let error = link(&[LIBRARY, ".entry k() {\nfrob.u32 %r1;\nret; }"]).expect_err("unknown");
    assert_eq!((error.text, error.error.line), (1, 5));
    let error = link(&[LIBRARY, ".global .u32 a = missing;"]).expect_err("unknown");
    assert_eq!(error.text, 1);
}

#[test]
fn a_kernel_that_is_not_supported_leaves_the_others() {
    const CUBE: &str = ".func cube() { wgmma.fence.sync.aligned; ret; } .visible .entry bad() { call cube; ret; }";
    let expected: Vec<u32> = (0..32).map(|thread| 7000 + 3 * thread + 1).collect();
    let module = link(&[CUBE, LIBRARY, KERNEL]).expect("one kernel runs");
    let refused = module.entry("bad").expect("described");
    let reason = refused.refusal().expect("refused").to_string();
    assert!(reason.contains("wgmma.fence.sync.aligned"), "{reason}");
    let launch = Launch::new([1, 1, 1], [1, 1, 1]);
    let fault = refused
        .launch(&launch, &[], &Memory::new(1 << 20), &Cancel::new())
        .expect_err("refused");
    assert!(fault.to_string().contains("wgmma.fence.sync.aligned"), "{fault}");
    assert!(module.entry("k").expect("the kernel").refusal().is_none());
    let error = link(&[CUBE]).expect_err("no kernel runs").to_string();
    assert!(error.starts_with("text 0: kernel bad: line 4,"), "{error}");
    assert!(Module::load(&format!("{HEAD}{CUBE} .visible .entry good() {{ ret; }}")).is_err());
    // An error is one of the whole module.
    assert!(link(&[LIBRARY, KERNEL, ".entry wrong() { mov.u32 %r1, 1; ret; }"]).is_err());
    assert_eq!(run(&module), expected);
}

#[test]
fn kernels_that_are_not_supported_count_in_the_limit_of_a_module() {
    let long = "add.u32 v, v, 1;".repeat(60_000);
    let kernels: String = (0..30).map(|number| format!(".entry k{number}() {{ call long; ret; }}")).collect();
    let text = format!(".func long() {{ .reg .b32 v; {long} wgmma.fence.sync.aligned; ret; }} .entry good() {{ ret; }} {kernels}");
    let error = link(&[&text]).expect_err("too long").to_string();
    assert!(error.contains("operations in the module"), "{error}");
}

#[test]
fn variables_persist_in_an_instance_and_differ_between_instances() {
    let module = link(&[LIBRARY, KERNEL]).expect("links");
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4 * 32).expect("fits");
    let instances = [0, 1].map(|_| module.instantiate(&memory).expect("fits"));
    let launch = Launch::new([1, 1, 1], [32, 1, 1]);
    for (instance, launches) in instances.iter().zip([3, 1]) {
        let kernel = instance.entry("k").expect("the kernel");
        assert!(kernel.keeps_state());
        for _ in 0..launches {
            let arguments = ArgumentList::new().pointer(out);
            kernel.launch(&launch, arguments.bytes(), &memory, &Cancel::new()).expect("runs");
        }
    }
    let counts = instances.each_ref().map(|instance| {
        let symbols: Vec<_> = instance.symbols().collect();
        let [(name, address, bytes)] = symbols[..] else {
            panic!("{symbols:?}")
        };
        assert_eq!((name, bytes, instance.symbol(name)), ("shared_count", 4, Some((address, 4))));
        let mut value = [0; 4];
        memory.read(address, &mut value).expect("inside");
        u32::from_le_bytes(value)
    });
    assert_eq!(counts, [8, 6]);
    // A host write is what the next launch reads.
    let (address, _) = instances[0].symbol("shared_count").expect("a variable");
    memory.write(address, &100u32.to_le_bytes()).expect("inside");
    let arguments = ArgumentList::new().pointer(out);
    instances[0]
        .entry("k")
        .expect("the kernel")
        .launch(&launch, arguments.bytes(), &memory, &Cancel::new())
        .expect("runs");
    let mut value = [0; 4];
    memory.read(out, &mut value).expect("inside");
    assert_eq!(u32::from_le_bytes(value), 101_001);
}
