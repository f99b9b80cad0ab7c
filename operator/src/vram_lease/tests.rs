use super::{
    adoption::{adopted_by, lost_since},
    *,
};
use crate::{
    clock::timestamp,
    pool::{HeldGrant, Loss, Lost},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sahasra_crds::{
    VramLeaseSpec, VramLeaseStatus,
    vram_lease::{GrantStatus, SliceBounds, SliceSpec},
};
use sahasra_names::{BootId, DeviceId};
use sahasra_wire::grants::{Grant, GrantId};

fn lease() -> VramLease {
    let spec = VramLeaseSpec {
        owner: Default::default(),
        slice: SliceSpec {
            vram: "512Mi".parse().unwrap(),
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
fn a_lease_that_ended_reports_it_and_is_not_claimed_again() {
    let mut lease = lease();
    assert!(!is_over(&lease));
    lease.status = Some(next_status(&lease, &ClaimView::default(), 1, true, None));
    assert!(is_over(&lease));
    assert!(!conditions::is_true(&lease.status.unwrap().conditions, GRANTED));
}

#[test]
fn a_session_adopts_the_slice_that_its_status_names_and_no_other() {
    let grant = |counter| Grant {
        id: GrantId {
            boot_id: "boot".to_owned(),
            counter,
        },
        slices: 1,
        ..Grant::default()
    };
    let held = || vec![("node-a".into(), grant(7)), ("node-b".into(), grant(7))];
    let mut lease = lease();
    lease.spec.owner.kind = Some("GpuSession".to_owned());
    lease.metadata.owner_references = Some(vec![OwnerReference {
        kind: "GpuSession".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    assert!(is_a_sessions(&lease));
    // The session was not placed yet: any grant is adopted, but only one.
    assert_eq!(adopted_by(&lease, held()), [("node-a".into(), grant(7))]);
    let mut status = VramLeaseStatus::default();
    conditions::set(&mut status.conditions, GRANTED, true, "SlicesGranted", "held", None, timestamp());
    status.grants.push(GrantStatus {
        worker: "node-b".to_owned(),
        device: "gpu-0".to_owned(),
        slices: 1,
        id: grant(7).id.text(),
    });
    lease.status = Some(status);
    assert_eq!(adopted_by(&lease, held()), [("node-b".into(), grant(7))]);
    // A lease that is not for a session keeps all its grants.
    lease.metadata.owner_references = None;
    lease.spec.owner.kind = None;
    assert_eq!(adopted_by(&lease, held()).len(), 2);
}

#[test]
fn waiting_is_explained() {
    let view = ClaimView {
        why_not: Some("0 of 1 devices can serve: 1 full".into()),
        ..ClaimView::default()
    };
    let status = next_status(&lease(), &view, 1, false, None);
    let granted = conditions::get(&status.conditions, GRANTED).unwrap();
    assert_eq!(
        (granted.reason.as_str(), granted.message.as_str()),
        ("WaitingForSlices", "0 of 1 devices can serve: 1 full")
    );
}

#[test]
fn a_lease_whose_minimum_was_raised_keeps_its_slices_and_waits_for_more() {
    let mut lease = lease();
    let view = ClaimView {
        grants: vec![HeldGrant {
            id: GrantId::default(),
            device: DeviceId::new("node-a", "gpu-0"),
            endpoint: String::new(),
            slices: 1,
        }],
        keeps_fewer: true,
        why_not: Some("needs 1 more slice".into()),
        ..ClaimView::default()
    };
    lease.spec.renewal = Renewal::Automatic;
    let status = next_status(&lease, &view, 1, false, None);
    let granted = conditions::get(&status.conditions, GRANTED).unwrap().clone();
    assert_eq!(
        (granted.reason.as_str(), granted.message.as_str()),
        ("WaitingForMoreSlices", "needs 1 more slice")
    );
    let told = events(&lease, &status, None);
    assert_eq!(told, [(false, "WaitingForMoreSlices", "needs 1 more slice".to_owned())]);
    // The next operator knows from the status that the slices are kept.
    lease.status = Some(status.clone());
    assert!(was_granted(&lease));
    assert_eq!(events(&lease, &status, None), []);
    // Without renewal, slices are granted once.
    lease.spec.renewal = Renewal::Never;
    let status = next_status(&lease, &view, 1, false, None);
    assert!(
        conditions::get(&status.conditions, GRANTED)
            .unwrap()
            .message
            .contains("create another VramLease")
    );
}

#[test]
fn a_loss_since_the_last_term_is_reported_with_its_cause() {
    let mut lease = lease();
    lease.spec.renewal = Renewal::Automatic;
    let mut status = VramLeaseStatus::default();
    conditions::set(&mut status.conditions, GRANTED, true, "SlicesGranted", "held", None, timestamp());
    for (worker, counter) in [("node-a", 7), ("node-b", 8)] {
        let id = GrantId {
            boot_id: "boot".to_owned(),
            counter,
        };
        status.grants.push(GrantStatus {
            worker: worker.to_owned(),
            device: "gpu-0".to_owned(),
            slices: 2,
            id: id.text(),
        });
    }
    lease.status = Some(status);
    let adopted = |worker: &str, counter| {
        let id = GrantId {
            boot_id: "boot".to_owned(),
            counter,
        };
        (worker.into(), Grant { id, ..Grant::default() })
    };
    let (a, b) = (adopted("node-a", 7), adopted("node-b", 8));
    let boot = |_: &str| Some(BootId::from("boot"));
    assert_eq!(lost_since(&lease, &[a.clone(), b], &[], boot), None);
    let cause =
        |silent: &[WorkerName], boot: fn(&str) -> Option<BootId>| lost_since(&lease, std::slice::from_ref(&a), silent, boot).unwrap().why;
    assert_eq!(cause(&[], |_| Some("boot".into())), Loss::Expired);
    assert!(matches!(cause(&[], |_| Some("boot-2".into())), Loss::Worker(_)));
    assert!(matches!(cause(&[], |_| None), Loss::Worker(_)));
    assert!(matches!(cause(&["node-b".into()], |_| Some("boot".into())), Loss::Worker(_)));
    // A loss is reported even if the lease is granted slices again at once.
    let lost = lost_since(&lease, &[a], &[], boot).unwrap();
    let view = ClaimView {
        lost: Some(lost.clone()),
        losses: 1,
        ..ClaimView::default()
    };
    let next = next_status(&lease, &view, 2, false, Some(&lost));
    let loss = next.last_loss.clone().unwrap();
    assert_eq!(
        (loss.reason.as_str(), loss.message.as_str()),
        ("Expired", "2 slices on node-b/gpu-0: expired: no operator renewed it in time")
    );
    let [(true, "SlicesExpired", note)] = &events(&lease, &next, Some(&lost))[..] else {
        panic!("{next:?}")
    };
    assert_eq!(*note, loss.message);
    lease.status = Some(next);
    assert_eq!(
        next_status(&lease, &view, 2, false, None).last_loss,
        Some(loss),
        "it stays when there is no news"
    );
}

#[test]
fn only_a_lease_without_renewal_reports_its_end() {
    let view = |slices| ClaimView {
        grants: vec![crate::pool::HeldGrant {
            id: GrantId::default(),
            device: DeviceId::new("node-a", "gpu-0"),
            endpoint: String::new(),
            slices,
        }],
        ..ClaimView::default()
    };
    let mut lease = lease();
    let status = next_status(&lease, &view(2), 1, false, None);
    assert!(status.expires_at.is_some());
    let told = events(&lease, &status, None);
    assert!(matches!(&told[..], [(false, "SlicesGranted", _)]), "{told:?}");
    lease.status = Some(status.clone());
    assert_eq!(next_status(&lease, &view(2), 1, false, None).expires_at, status.expires_at);
    // The planned end of the lease does not count as a loss.
    let lost = Lost {
        device: DeviceId::new("node-a", "gpu-0"),
        slices: 2,
        why: Loss::Expired,
    };
    assert!(is_due(&lease, &lost));
    let ended = ClaimView {
        lost: Some(lost),
        ..ClaimView::default()
    };
    let status = next_status(&lease, &ended, 1, true, None);
    let told = events(&lease, &status, None);
    assert!(
        matches!(&told[..], [(false, "Expired", note)] if note == "expired while renewal was Never: create another VramLease"),
        "{told:?}"
    );
    // A change of `renewal` comes too late: the message still holds.
    lease.status = Some(status);
    lease.spec.renewal = Renewal::Automatic;
    assert!(is_over(&lease));
    lease.status = None;
    lease.spec.renewal = Renewal::Automatic;
    assert_eq!(next_status(&lease, &view(2), 1, false, None).expires_at, None);
}
