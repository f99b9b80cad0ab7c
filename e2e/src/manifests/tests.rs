#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

const BASES: &str = "burst: {kind: BurstJob, spec: {count: 1, seed: 2}}\nlease: {kind: VramLease}\nsecret: {kind: Secret}\n";

/// A case with these lines after the required ones.
fn case(name: &str, lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    format!("- name: {name}\n  why: w\n  refused-by: apply\n  field: spec\n  says: no\n{lines}")
}

fn table(text: &str) -> Result<Vec<WrongManifest>, ManifestError> {
    manifests(&yaml::parse(BASES).unwrap(), yaml::parse(text).unwrap())
}

fn fault(text: &str) -> CaseFault {
    match table(text) {
        Err(ManifestError::Case { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

fn parse_error(text: &str) -> String {
    let error = yaml::parse::<Vec<Case>>(text).unwrap_err();
    std::error::Error::source(&error).unwrap().to_string()
}

fn objects(text: &str) -> Vec<Value> {
    yaml::documents(text).unwrap().into_iter().map(|(_, object)| object).collect()
}

#[test]
fn every_case_of_the_tables_is_read() {
    let manifests = wrong_manifests().unwrap();
    assert!(manifests.len() >= 72, "{} manifests", manifests.len());
    for manifest in manifests {
        for text in [&manifest.text, &manifest.twin] {
            let objects = objects(text);
            assert!(objects.iter().all(|object| object["metadata"]["name"] == *manifest.name), "{text}");
        }
    }
}

#[test]
fn patches_create_an_invalid_manifest_and_its_twin_from_one_base() {
    let text = case(
        "a",
        "both: {spec: {seed: null}}\nwrong: {spec: {count: 0}}\nright: {spec: {count: 5}}\nbeside: {right: secret}",
    );
    let [manifest] = table(&text).unwrap().try_into().unwrap();
    let job = |count| json!({"kind": "BurstJob", "metadata": {"name": "a"}, "spec": {"count": count}});
    assert_eq!(objects(&manifest.text), [job(0)]);
    assert_eq!(
        objects(&manifest.twin),
        [json!({"kind": "Secret", "metadata": {"name": "a"}}), job(5)]
    );
}

#[test]
fn the_twin_without_a_patch_is_the_base() {
    let text = case("a", "base: lease\nwrong: {spec: {}}");
    let [manifest] = table(&text).unwrap().try_into().unwrap();
    assert_eq!(objects(&manifest.twin), [json!({"kind": "VramLease", "metadata": {"name": "a"}})]);
}

#[test]
fn concatenated_texts_are_one_stream_of_documents() {
    let text = case("a", "wrong: {spec: {count: 0}}") + &case("b", "wrong: {spec: null}\nbeside: {wrong: secret}");
    let manifests = table(&text).unwrap();
    let all: String = manifests.into_iter().map(|manifest| manifest.text).collect();
    let kinds: Vec<Value> = objects(&all).iter().map(|object| object["kind"].clone()).collect();
    assert_eq!(kinds, ["BurstJob", "Secret", "BurstJob"]);
}

#[test]
fn malformed_cases_are_rejected() {
    let good = case("a", "wrong: {spec: {count: 0}}");
    assert_eq!(fault(&format!("{good}{good}")), CaseFault::Twice);
    assert_eq!(fault(&case("An", "wrong: {spec: {count: 0}}")), CaseFault::Name);
    assert_eq!(fault(&good.replace("says: no", "says: ' '")), CaseFault::Empty("says"));
    assert_eq!(fault(&good.replace("field: spec", "field: ''")), CaseFault::Empty("field"));
    assert_eq!(fault(&case("a", "base: pod\nwrong: {}")), CaseFault::NoBase("pod".to_owned()));
    assert_eq!(
        fault(&case("a", "wrong: {spec: {count: 0}}\nbeside: {right: pod}")),
        CaseFault::NoBase("pod".to_owned())
    );
    assert_eq!(fault(&case("a", "wrong: {}")), CaseFault::Idle("wrong"));
    assert_eq!(fault(&case("a", "wrong: {spec: {count: 1}}")), CaseFault::Idle("wrong"));
    assert_eq!(
        fault(&case("a", "wrong: {spec: {count: 0}}\nright: {spec: {sede: null}}")),
        CaseFault::Idle("right")
    );
    assert_eq!(fault(&case("a", "both: {}\nwrong: {spec: {count: 0}}")), CaseFault::Idle("both"));
    assert_eq!(
        fault(&case("a", "wrong: {spec: {count: 0}}\nright: {spec: {count: 0}}")),
        CaseFault::Same
    );
}

#[test]
fn unknown_and_missing_keys_are_rejected_by_name() {
    let unknown = parse_error(&case("a", "wrong: {}\nrigth: {}"));
    assert!(unknown.contains("unknown field `rigth`"), "{unknown}");
    let unknown = parse_error(&case("a", "wrong: {}\nbeside: {twin: secret}"));
    assert!(unknown.contains("unknown field `twin`"), "{unknown}");
    let missing = parse_error(&case("a", "right: {}"));
    assert!(missing.contains("missing field `wrong`"), "{missing}");
    let twice = parse_error(&case("a", "wrong: {}\nwrong: {}"));
    assert!(twice.contains("duplicate field `wrong`"), "{twice}");
    let unknown = parse_error(&case("a", "wrong: {}").replace("apply", "kubelet"));
    assert!(unknown.contains("unknown variant `kubelet`"), "{unknown}");
}
