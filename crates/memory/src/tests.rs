use bytes::{BufMut, Bytes};
use proptest::prelude::*;

use crate::{ALIGNMENT, Filling, Region, pool};

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place % 251) as u8).collect()
}

#[test]
fn regions_of_one_memory_join_without_a_copy() {
    let content = pattern(5 << 20);
    let mut filling = Filling::new(content.len()).unwrap();
    let mut whole: Option<Region> = None;
    for part in content.chunks(1 << 20) {
        filling.extend_from_slice(part);
        let region = filling.split();
        assert_eq!(*region, *part);
        match &mut whole {
            None => whole = Some(region),
            Some(whole) => whole.join(region).unwrap(),
        }
    }
    let whole = whole.unwrap();
    assert!(whole.begins(content.len()));
    assert_eq!(whole.as_ptr().align_offset(ALIGNMENT), 0);
    let start = whole.as_ptr();
    let bytes = Bytes::from(whole);
    assert_eq!(bytes.as_ptr(), start);
    assert!(bytes == content);
}

#[test]
fn only_adjacent_regions_join() {
    let mut filling = Filling::new(30).unwrap();
    filling.put_slice(&[1; 10]);
    let mut first = filling.split();
    filling.put_slice(&[2; 10]);
    let second = filling.split();
    filling.put_slice(&[3; 10]);
    let third = filling.split();
    assert_eq!(first.join(third.clone()).unwrap_err(), third, "what is between is missing");
    first.join(second).unwrap();
    first.join(third).unwrap();
    let mut other = Filling::new(30).unwrap();
    other.put_slice(&[4; 10]);
    assert!(first.join(other.split()).is_err());
    assert_eq!(*first, *[[1; 10], [2; 10], [3; 10]].concat());
    assert!(!Region::empty().begins(30));
    assert_eq!(*Region::empty(), []);
}

#[test]
fn an_interrupted_part_is_filled_again() {
    let mut filling = Filling::new(20).unwrap();
    filling.extend_from_slice(&[1; 8]);
    filling.extend_from_slice(&[2; 5]);
    filling.truncate(8);
    assert_eq!((filling.filled(), filling.missing()), (8, 12));
    filling.extend_zeroed(12)[11] = 3;
    let whole = filling.finish();
    assert_eq!(*whole, [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
}

#[test]
fn memory_is_reused_once_no_region_refers_to_it() {
    // A size that no other test uses.
    let bytes = (9 << 20) + 12_345;
    let mut filling = Filling::new(bytes).unwrap();
    filling.extend_from_slice(&pattern(bytes));
    let whole = filling.finish();
    let start = whole.as_ptr();
    let kept = whole.clone();
    drop(whole);
    let other = Filling::new(bytes).unwrap().finish();
    assert_ne!(other.as_ptr(), start, "it is looked at");
    assert!(*kept == *pattern(bytes));
    drop((other, kept));
    let again = Filling::new(bytes).unwrap();
    assert_eq!(again.finish().as_ptr(), start);
    assert!(pool::unused_bytes() <= pool::most_bytes());
}

#[test]
fn an_allocation_that_the_system_rejects_is_an_error() {
    assert_eq!(
        Filling::new(usize::MAX).unwrap_err().to_string(),
        format!("failed to allocate {} bytes", usize::MAX)
    );
    assert!(Filling::new(isize::MAX as usize).is_err());
}

proptest! {
    #[test]
    fn any_split_into_parts_keeps_the_bytes(sizes in prop::collection::vec(0_usize..70_000, 0..8)) {
        let content = pattern(sizes.iter().sum());
        let mut filling = Filling::new(content.len()).unwrap();
        let mut whole = filling.split();
        let mut start = 0;
        for size in sizes {
            filling.extend_from_slice(&content[start..start + size]);
            start += size;
            whole.join(filling.split()).unwrap();
        }
        prop_assert_eq!(filling.missing(), 0);
        prop_assert!(whole.begins(content.len()));
        prop_assert!(*whole == *content);
    }
}
