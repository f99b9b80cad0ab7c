use super::*;

const NEW: Dialect = Dialect {
    version: (8, 0),
    architecture: 80,
};

fn admitted(text: &str, dialect: Dialect) -> bool {
    let mut words = text.split('.');
    let opcode = words.next().expect("an opcode");
    canonical(opcode, &words.collect::<Vec<_>>(), dialect).is_ok()
}

#[test]
fn earlier_forms_are_admitted_where_the_isa_has_them() {
    let old = |version, architecture| Dialect { version, architecture };
    assert!(admitted("sin.f32", old((1, 3), 13)) && !admitted("sin.f32", old((1, 4), 13)));
    assert!(admitted("mad.f32", old((2, 3), 13)) && !admitted("mad.f32", old((2, 0), 20)));
    assert!(admitted("vote.ballot.b32", old((8, 0), 61)) && admitted("shfl.up.b32", old((6, 3), 70)));
    assert!(!admitted("vote.ballot.b32", NEW));
    let reason = canonical("vote", &["any", "pred"], NEW).expect_err("refused");
    assert!(reason.contains("else `.sync`"), "{reason}");
    let source = |target| Source {
        target,
        ..Source::default()
    };
    for (target, architecture) in [
        ("sm_10", 10),
        ("sm_100", 100),
        ("compute_90a", 90),
        ("sm_120f", 120),
        ("other", u32::MAX),
    ] {
        assert_eq!(Dialect::of(&source(target)).architecture, architecture);
    }
}

#[test]
fn forms_are_matched_word_by_word() {
    let admitted = |text: &str| admitted(text, NEW);
    assert!(admitted("add.rn.ftz.sat.f32") && admitted("add.f32") && !admitted("add.rn.rn.f32"));
    assert!(admitted("ld.global.nc.L1::no_allocate.L2::128B.v4.f32") && !admitted("ld.global.L3::x.f32"));
    assert!(admitted("atom.acq_rel.gpu.global.add.u32") && !admitted("red.exch.b32"));
    assert!(admitted("atom.global.sys.add.f64") && admitted("red.add.relaxed.gpu.global.u32") && !admitted("red.sys.sys.add.u32"));
    assert!(admitted("exit") && !admitted("exit.uni"));
    assert!(admitted("barrier.cluster.wait.acquire.aligned") && !admitted("barrier.cluster.sync"));
    assert!(admitted("fma.rn.f32.f16") && !admitted("fma.f32.f16") && !admitted("add.ftz.f32.bf16"));
    assert!(admitted("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint") && !admitted("cp.async.bulk.global.shared::cta"));
}

#[test]
fn rejections_name_the_reason() {
    let reason = canonical("wgmma", &["fence", "sync", "aligned"], NEW).expect_err("refused");
    assert_eq!(
        reason,
        "instruction form wgmma.fence.sync.aligned: asynchronous warpgroup matrices (wgmma, sm_90a)"
    );
    assert!(
        canonical("atom", &["global", "cas", "b128"], NEW)
            .expect_err("refused")
            .contains("128-bit")
    );
    assert!(
        canonical("cp", &["async", "bulk", "tensor"], NEW)
            .expect_err("refused")
            .contains("TMA")
    );
    assert!(
        canonical("fence", &["sync_restrict::shared::cluster"], NEW)
            .expect_err("refused")
            .contains("clusters")
    );
}

#[test]
fn every_line_of_the_table_is_printed() {
    let lines = FORMS.lines().filter(|line| !line.is_empty() && !line.starts_with('§')).count();
    let table = table();
    let printed = table.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(printed, lines + EARLIER.len() + REFUSED.len() + REFUSED_FORMS.len() + 1);
}

#[test]
fn modifiers_other_than_types_stand_in_any_order() {
    let ordered = |text: &'static str| {
        let mut words = text.split('.');
        let opcode = words.next().expect("an opcode");
        canonical(opcode, &words.collect::<Vec<_>>(), NEW).map(|words| words.join("."))
    };
    assert_eq!(ordered("cvt.f32.f64.rn"), Ok("rn.f32.f64".into()));
    assert_eq!(ordered("cvt.u32.f32.rzi"), Ok("rzi.u32.f32".into()));
    assert_eq!(ordered("rcp.approx.f32.ftz"), Ok("approx.ftz.f32".into()));
    assert_eq!(ordered("ld.f32.shared.volatile"), Ok("volatile.shared.f32".into()));
    assert_eq!(
        ordered("ld.L1::no_allocate.global.nc.f32"),
        Ok("global.nc.L1::no_allocate.f32".into())
    );
    assert_eq!(ordered("setp.and.f32.lt"), Ok("lt.and.f32".into()));
    assert!(ordered("cvt.f64.f32.rn").is_err() && ordered("mul.f32.lo").is_err() && ordered("mma.sync.aligned.row").is_err());
    let many = vec!["ftz"; 1000];
    assert!(canonical("add", &many, NEW).is_err());
}
