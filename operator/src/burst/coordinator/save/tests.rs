use super::*;

#[test]
fn a_stores_error_is_reported_with_a_remedy_and_without_its_text() {
    let refused = object_store::Error::PermissionDenied {
        path: "bursts/default/job/manifest.json".to_owned(),
        source: "Error performing PUT https://s3.us-east-1.amazonaws.com/results: 403 Forbidden".into(),
    };
    let error = store("write the manifest to the store of spec.output")(refused);
    assert_eq!(
        causes(&error),
        "failed to write the manifest to the store of spec.output: the store denied access: check the rights of the keys in the Secret"
    );
}
