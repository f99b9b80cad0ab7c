//! CUDA arrays: what they are, whose they are, and what textures and surfaces are refused.

use crate::driver::{CPU, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Program, apart, cu, ok};
use crate::texels::{Copy3d, Description, F32, LAYERED, Plane, Resource, S16, SURFACE, Sampling, U8, U32, Volume, free, image, textured};

#[test]
fn arrays_say_what_they_are_and_count_as_memory() {
    apart("arrays::arrays_say_what_they_are_and_count_as_memory", CPU, || {
        let program = Program::new();
        let library = &program.library;
        // What other memory leaves behind.
        let bytes = 100 * 8 * 600usize;
        let used = program.allocate(bytes);
        ok!(library, cuMemsetD8_v2(used, 0xa5u8, bytes));
        ok!(library, cuMemFree_v2(used));
        let before = free(&program);
        let description = Description {
            size: [100, 20, 30],
            format: S16,
            channels: 4,
            flags: SURFACE,
        };
        let array = program.array(description.size, S16, 4, SURFACE);
        let taken = before - free(&program);
        assert!((100 * 8 * 600..110 * 8 * 600).contains(&taken), "{taken}");
        let (mut known, mut plane) = (Description::default(), Plane::default());
        ok!(library, cuArray3DGetDescriptor_v2(&raw mut known, array));
        ok!(library, cuArrayGetDescriptor_v2(&raw mut plane, array));
        assert_eq!(known, description);
        assert_eq!((plane.size, plane.format, plane.channels), ([100, 20], S16, 4));
        assert!(
            program.texels(array, [800, 20, 30]).iter().all(|byte| *byte == 0),
            "arrays begin as zeros"
        );
        ok!(library, cuArrayDestroy(array));
        assert_eq!(free(&program), before);
        for code in [
            cu!(library, cuArrayDestroy(array)),
            cu!(library, cuArrayDestroy(0u64)),
            cu!(library, cuArray3DGetDescriptor_v2(&raw mut known, array)),
            cu!(library, cuArrayGetDescriptor_v2(&raw mut plane, array)),
        ] {
            assert_eq!(code, INVALID_HANDLE);
        }
        let mut array = 0u64;
        let plane = Plane {
            size: [7, 0],
            format: U8,
            channels: 1,
        };
        ok!(library, cuArrayCreate_v2(&raw mut array, &raw const plane));
        ok!(library, cuArray3DGetDescriptor_v2(&raw mut known, array));
        assert_eq!((known.size, known.flags), ([7, 0, 0], 0));
        // What only sparse, deferred and planar arrays have.
        let mut words = [0u64; 8];
        for code in [
            cu!(library, cuArrayGetSparseProperties(words.as_mut_ptr(), array)),
            cu!(library, cuArrayGetMemoryRequirements(words.as_mut_ptr(), array, 0i32)),
            cu!(library, cuArrayGetPlane(words.as_mut_ptr(), array, 0u32)),
        ] {
            assert_eq!(code, INVALID_VALUE);
        }
    });
}

#[test]
fn invalid_arrays_are_refused_and_take_no_memory() {
    apart("arrays::invalid_arrays_are_refused_and_take_no_memory", CPU, || {
        let program = Program::new();
        let before = free(&program);
        let good = Description {
            size: [8, 8, 0],
            format: F32,
            channels: 1,
            flags: 0,
        };
        let create = |description: Description| {
            let mut array = 0u64;
            let code = cu!(program.library, cuArray3DCreate_v2(&raw mut array, &raw const description));
            assert_eq!(array, 0, "{description:?}");
            code
        };
        for wrong in [
            Description { channels: 3, ..good },
            Description { channels: 0, ..good },
            Description { format: 0, ..good },
            Description { format: 4, ..good },
            Description { size: [0, 8, 0], ..good },
            Description { size: [8, 0, 8], ..good },
            Description { flags: LAYERED, ..good },
            Description { flags: 0x8000, ..good },
            Description {
                size: [131_073, 0, 0],
                ..good
            },
            Description {
                size: [8, 65_537, 0],
                ..good
            },
            Description {
                size: [8, 8, 16_385],
                ..good
            },
        ] {
            assert_eq!(create(wrong), INVALID_VALUE, "{wrong:?}");
        }
        // Cubes, gathers, sparse arrays, and formats with several planes.
        for missing in [
            Description {
                size: [8, 8, 6],
                flags: 4,
                ..good
            },
            Description { flags: 8, ..good },
            Description { flags: 0x40, ..good },
            Description {
                format: 0xb0,
                channels: 3,
                ..good
            },
        ] {
            assert_eq!(create(missing), NOT_SUPPORTED, "{missing:?}");
        }
        assert_eq!(
            create(Description {
                size: [16_384, 16_384, 0],
                ..good
            }),
            OUT_OF_MEMORY
        );
        assert_eq!(cu!(program.library, cuArray3DCreate_v2(0u64, &raw const good)), INVALID_VALUE);
        assert_eq!(free(&program), before);
    });
}

#[test]
fn arrays_of_a_context_end_with_it_and_are_no_textures_of_another() {
    apart(
        "arrays::arrays_of_a_context_end_with_it_and_are_no_textures_of_another",
        CPU,
        || {
            let Some(program) = textured() else { return };
            let library = &program.library;
            let source = image(16);
            let own = program.array([4, 1, 0], U32, 1, SURFACE);
            let memory = program.allocate(1024);
            let before = free(&program);
            let mut context = 0u64;
            ok!(library, cuCtxCreate_v2(&raw mut context, 0u32, 0i32));
            let array = program.array_of([4, 1, 0], U32, 1, SURFACE, &source);
            let texture = program.texture(&Resource::array(array), &Sampling::default());
            // Copies work between contexts.
            let between = Copy3d {
                from: Volume::array(array, [0; 3]),
                to: Volume::array(own, [0; 3]),
                size: [16, 1, 1],
            };
            ok!(library, cuMemcpy3D_v2(&raw const between));
            assert_eq!(
                program.try_texture(&Resource::array(own), &Sampling::default(), None),
                Err(INVALID_HANDLE)
            );
            assert_eq!(program.try_surface(&Resource::array(own)), Err(INVALID_HANDLE));
            let linear = Resource::linear(memory, F32, 1, 1024);
            assert_eq!(program.try_texture(&linear, &Sampling::default(), None), Err(INVALID_VALUE));
            ok!(library, cuCtxDestroy_v2(context));
            assert_eq!(program.texels(own, [16, 1, 1]), source);
            let mut known = Resource::default();
            let mut description = Description::default();
            assert_eq!(cu!(library, cuTexObjectGetResourceDesc(&raw mut known, texture)), INVALID_VALUE);
            assert_eq!(cu!(library, cuTexObjectDestroy(texture)), INVALID_VALUE);
            assert_eq!(cu!(library, cuArray3DGetDescriptor_v2(&raw mut description, array)), INVALID_HANDLE);
            assert_eq!(free(&program), before);
        },
    );
}

#[test]
fn textures_and_surfaces_of_what_kernels_could_not_read_are_refused() {
    apart(
        "arrays::textures_and_surfaces_of_what_kernels_could_not_read_are_refused",
        CPU,
        || {
            let Some(program) = textured() else { return };
            let memory = program.allocate(8192);
            let (integers, floats) = (program.array([4, 4, 0], U32, 1, 0), program.array([4, 4, 0], F32, 1, 0));
            let before = free(&program);
            let point = Sampling::default();
            let array = Resource::array(floats);
            for (resource, sampling) in [
                (Resource { flags: 1, ..array }, point),
                (Resource { kind: 4, ..array }, point),
                (
                    array,
                    Sampling {
                        address_modes: [4, 0, 0],
                        ..point
                    },
                ),
                (array, Sampling { filter: 2, ..point }),
                (array, Sampling { flags: 4, ..point }),
                // No array is a cubemap.
                (array, Sampling { flags: 0x40, ..point }),
                // Integers have no values between them.
                (Resource::array(integers), Sampling { filter: 1, ..point }),
                (Resource::linear(memory + 4, F32, 1, 64), point),
                (Resource::linear(memory, F32, 3, 64), point),
                (Resource::linear(memory, 5, 1, 64), point),
                (Resource::linear(memory, F32, 1, 3), point),
                (Resource::linear(memory, F32, 1, 8196), point),
                (Resource::linear(memory, U8, 1, (1 << 28) + 1), point),
                (Resource::linear(0, F32, 1, 64), point),
                (Resource::plane(memory + 64, F32, 1, [4, 4], 64), point),
                (Resource::plane(memory, F32, 1, [4, 4], 48), point),
                (Resource::plane(memory, F32, 1, [17, 4], 64), point),
                (Resource::plane(memory, F32, 1, [0, 4], 64), point),
                (Resource::plane(memory, F32, 1, [4, 0], 64), point),
                (Resource::plane(memory, F32, 1, [4, 65_001], 64), point),
                (Resource::plane(memory, F32, 1, [16, 129], 64), point),
            ] {
                assert_eq!(
                    program.try_texture(&resource, &sampling, None),
                    Err(INVALID_VALUE),
                    "{resource:?} {sampling:?}"
                );
            }
            for (resource, sampling) in [(Resource { kind: 1, ..array }, point), (array, Sampling { flags: 0x10, ..point })] {
                assert_eq!(
                    program.try_texture(&resource, &sampling, None),
                    Err(NOT_SUPPORTED),
                    "{resource:?} {sampling:?}"
                );
            }
            assert_eq!(program.try_texture(&Resource::array(7), &point, None), Err(INVALID_HANDLE));
            // Surfaces are of arrays that were made for them.
            for resource in [array, Resource::plane(memory, F32, 1, [4, 4], 64), Resource { kind: 4, ..array }] {
                assert_eq!(program.try_surface(&resource), Err(INVALID_VALUE), "{resource:?}");
            }
            let library = &program.library;
            assert_eq!(
                cu!(library, cuTexObjectCreate(0u64, &raw const array, &raw const point, 0u64)),
                INVALID_VALUE
            );
            let mut texture = 0u64;
            assert_eq!(
                cu!(library, cuTexObjectCreate(&raw mut texture, &raw const array, 0u64, 0u64)),
                INVALID_VALUE
            );
            assert_eq!(free(&program), before);
            let texture = program.texture(&Resource::plane(memory, F32, 1, [16, 128], 64), &point);
            // Handles of textures are no surfaces, and no memory of the program.
            assert_eq!(cu!(library, cuSurfObjectDestroy(texture)), INVALID_VALUE);
            assert_eq!(cu!(library, cuMemFree_v2(texture)), INVALID_VALUE);
            let mut kind = 0u32;
            assert_eq!(cu!(library, cuPointerGetAttribute(&raw mut kind, 2u32, texture)), INVALID_VALUE);
            ok!(library, cuTexObjectDestroy(texture));
            let mut width = 0usize;
            ok!(library, cuDeviceGetTexture1DLinearMaxWidth(&raw mut width, F32, 4u32, 0i32));
            assert_eq!(width, 1 << 28);
        },
    );
}
