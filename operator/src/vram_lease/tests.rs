use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sahasra_crds::{
    VramLeaseSpec, VramQuantity,
    vram_lease::{SliceBounds, SliceSpec},
};
use sahasra_wire::grants::GrantId;

fn lease() -> VramLease {
    let spec = VramLeaseSpec {
        owner: Default::default(),
        slice: SliceSpec {
            vram: VramQuantity::from_mebibytes(512),
            class: None,
        },
        engine: None,
        slices: SliceBounds { min: 2, max: 4 },
        ttl_seconds: 60,
        renewal: Renewal::Never,
        keep_seconds: None,
    };
    VramLease::new("mine", spec)
}

#[test]
fn a_lease_that_ended_says_so_and_is_not_taken_up_again() {
    let mut lease = lease();
    assert!(!is_over(&lease));
    lease.status = Some(next_status(&lease, &ClaimView::default(), 1, true));
    assert!(is_over(&lease));
    assert!(!conditions::is_true(&lease.status.unwrap().conditions, GRANTED));
}

#[test]
fn a_session_takes_up_the_slice_that_its_status_names_and_no_other() {
    let grant = |counter| Grant {
        id: GrantId {
            boot_id: "boot".to_owned(),
            counter,
        },
        slices: 1,
        ..Grant::default()
    };
    let held = || vec![("node-a".to_owned(), grant(7)), ("node-b".to_owned(), grant(7))];
    let mut lease = lease();
    lease.spec.owner.kind = Some("GpuSession".to_owned());
    lease.metadata.owner_references = Some(vec![OwnerReference {
        kind: "GpuSession".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    assert!(is_a_sessions(&lease));
    // It was placed nowhere yet: whatever is held serves, and one of it is enough.
    assert_eq!(taken_up(&lease, held()), [("node-a".to_owned(), grant(7))]);
    let mut status = VramLeaseStatus::default();
    conditions::set(&mut status.conditions, GRANTED, true, "SlicesGranted", "held", None, timestamp());
    status.grants.push(GrantStatus {
        worker: "node-b".to_owned(),
        device: "gpu-0".to_owned(),
        slices: 1,
        id: grant(7).id.text(),
    });
    lease.status = Some(status);
    assert_eq!(taken_up(&lease, held()), [("node-b".to_owned(), grant(7))]);
    // A lease that is no session's keeps all that is held for it.
    lease.metadata.owner_references = None;
    lease.spec.owner.kind = None;
    assert_eq!(taken_up(&lease, held()).len(), 2);
}

#[test]
fn waiting_is_explained() {
    let view = ClaimView {
        why_not: Some("0 of 1 devices can serve: 1 full".into()),
        ..ClaimView::default()
    };
    let status = next_status(&lease(), &view, 1, false);
    let granted = conditions::get(&status.conditions, GRANTED).unwrap();
    assert_eq!(
        (granted.reason.as_str(), granted.message.as_str()),
        ("WaitingForSlices", "0 of 1 devices can serve: 1 full")
    );
}
