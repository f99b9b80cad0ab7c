use super::*;
use crate::CpuDevice;

/// Operations that sequences have.
fn stored() -> Vec<Operation> {
    let to = Region::linear(1 << 47);
    let fill = Operation::Fill {
        to,
        extent: Extent::linear(8),
        value: 1,
        element_bytes: 2,
    };
    let copy = Operation::Copy {
        from: Region::linear(7),
        to,
        extent: Extent::linear(8),
    };
    vec![fill, copy]
}

#[test]
fn operations_that_no_sequence_has_are_refused() {
    let mut batch = BytesMut::new();
    let operations = vec![Operation::Erase(SequenceId(1))];
    let sequence = SequenceId(1);
    encode(Operation::Extend { sequence, operations }, &mut batch);
    assert!(decode(&mut batch.freeze()).is_err());
}

#[test]
fn messages_of_more_operations_than_a_sequence_may_have_are_refused() {
    for (count, is_refused) in [(MAX_SEQUENCE_OPERATIONS, false), (MAX_SEQUENCE_OPERATIONS + 1, true)] {
        let copy = cuda::Operation {
            kind: Some(Kind::Copy(cuda::Copy::default())),
        };
        let extend = cuda::Operation {
            kind: Some(Kind::Extend(cuda::Extend {
                sequence: 1,
                operations: vec![copy; count],
            })),
        };
        let mut payload = Bytes::from(extend.encode_length_delimited_to_vec());
        assert_eq!(decode(&mut payload).is_err(), is_refused, "{count}");
    }
}

/// One operation of each kind.
fn operations() -> Vec<Operation> {
    let region = |address| Region {
        address,
        row_pitch: 512,
        slice_pitch: 1 << 40,
    };
    let extent = Extent {
        width: 4,
        height: 3,
        depth: 2,
    };
    vec![
        Operation::Map {
            address: 1 << 47,
            bytes: 1024,
        },
        Operation::Unmap { address: 7 },
        Operation::Write {
            to: region(1),
            extent,
            bytes: Bytes::from_static(&[5; 24]),
        },
        Operation::Copy {
            from: region(u64::MAX),
            to: region(3),
            extent,
        },
        Operation::Fill {
            to: region(4),
            extent,
            value: u32::MAX,
            element_bytes: 4,
        },
        Operation::Launch(Box::new(LaunchRequest {
            module: ModuleId(9),
            function: 1,
            grid: [1, 2, 3],
            block: [4, 5, 6],
            dynamic_shared_bytes: 7,
            stack_bytes: 8,
            cooperative: true,
            parameters: Bytes::from_static(b"parameters"),
        })),
        Operation::Mark(u64::MAX),
        Operation::Unload(ModuleId(3)),
        Operation::LimitHeap(0),
        Operation::Extend {
            sequence: SequenceId(5),
            operations: stored(),
        },
        Operation::Amend {
            sequence: SequenceId(5),
            index: 1,
            operations: stored(),
        },
        Operation::Replay(SequenceId(5)),
        Operation::Erase(SequenceId(0)),
    ]
}

#[test]
fn every_operation_comes_back_as_it_was() {
    let mut batch = BytesMut::new();
    for operation in operations() {
        encode(operation, &mut batch);
    }
    let mut payload = batch.freeze();
    for operation in operations() {
        assert_eq!(decode(&mut payload).unwrap(), Some(operation));
    }
    assert_eq!(decode(&mut payload).unwrap(), None);
}

#[test]
fn a_payload_that_is_cut_anywhere_is_refused() {
    for operation in operations() {
        let mut batch = BytesMut::new();
        encode(operation, &mut batch);
        let whole = batch.freeze();
        for length in 1..whole.len() {
            assert!(decode(&mut whole.slice(..length)).is_err(), "{length} of {whole:?}");
        }
    }
}

#[test]
fn descriptions_and_kinds_of_failures_come_back_as_they_were() {
    let description = ModuleDescription {
        functions: vec![FunctionDescription {
            name: "f".to_owned(),
            parameters: vec![ParameterPlace { offset: 8, bytes: 4 }],
            parameter_bytes: 12,
            shared_bytes: 1,
            local_bytes: 2,
            max_threads: 3,
            required_block: Some([4, 5, 6]),
            registers: Some(7),
            constant_bytes: 8,
            refusal: Some("unsupported".to_owned()),
        }],
        variables: vec![VariableDescription {
            name: "v".to_owned(),
            address: 1 << 50,
            bytes: 16,
        }],
    };
    assert_eq!(ModuleDescription::from(description.clone().into_message(1)), description);
    for code in FailureCode::all() {
        let kind = FailureKind::from(code);
        assert_eq!(FailureKind::from(FailureCode::from(kind)), kind, "{code}");
    }
}

#[test]
fn a_session_has_the_properties_of_its_device_but_for_its_memory() {
    let device = CpuDevice::new(1 << 30, std::num::NonZero::<usize>::MIN);
    let device = crate::Device::properties(&device);
    assert!(device.reads_descriptors);
    let expected = Properties {
        memory_bytes: 1 << 20,
        shares_host_memory: false,
        ..device.clone()
    };
    assert_eq!(Properties::of_session(device.into(), 1 << 20), Ok(expected));
    // Earlier executors do not say what they lack.
    let earlier = cuda::DeviceProperties {
        uuid: vec![0; 16].into(),
        ..Default::default()
    };
    assert!(!Properties::of_session(earlier, 0).unwrap().reads_descriptors);
}
