//! The C ABI of PJRT: the table of functions, and the structs that they take, with the layout of `pjrt_c_api.h` 0.114.
//!
//! Every function takes one struct that begins with its size. New versions only add fields at the end. A plugin rejects a struct that is
//! smaller than the version it knows, and ignores additional fields. An added input field that is zero counts as not given. So each struct
//! here ends with [`RESERVE`] zeros, as room for the fields that plugins newer than this file have added.

use std::ffi::{c_char, c_int, c_void};

/// Number of zero words at the end of each struct.
const RESERVE: usize = 8;

/// Types whose content only the plugin accesses.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub(crate) struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque!(Extension RawError RawEvent RawClient RawDevice RawDescription RawMemory RawExecutable RawLoaded RawBuffer Layout);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle<T>(pub *mut T);

// SAFETY: A plugin's objects may be used from any thread (pjrt_c_api.h).
unsafe impl<T> Send for Handle<T> {}
// SAFETY: A plugin's objects may be used from any thread (pjrt_c_api.h).
unsafe impl<T> Sync for Handle<T> {}

#[repr(C)]
pub(crate) struct Version {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub major: c_int,
    pub minor: c_int,
}

/// Head of the table that `GetPjrtApi` returns. It is followed by one pointer per function, as many as fit in `struct_size`.
#[repr(C)]
pub(crate) struct Api {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub version: Version,
}

/// `PJRT_NamedValue`. The union has eight bytes for any type.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NamedValue {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub name: *const c_char,
    pub name_size: usize,
    pub kind: c_int,
    pub value: Value,
    pub value_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Value {
    pub string: *const c_char,
    pub integers: *const i64,
    pub integer: i64,
    pub float: f32,
    pub boolean: bool,
}

pub(crate) const STRING: c_int = 0;
pub(crate) const INTEGER: c_int = 1;
pub(crate) const INTEGERS: c_int = 2;
pub(crate) const FLOAT: c_int = 3;
pub(crate) const BOOLEAN: c_int = 4;

/// `PJRT_HostBufferSemantics`: the buffer may share the host memory, which must not change until an event reports that it is not needed any
/// more.
pub(crate) const IMMUTABLE_ZERO_COPY: c_int = 2;

/// Function of the table, identified by the struct that it takes.
pub(crate) trait Function {
    const PLACE: usize;
    const NAME: &str;
}

/// Defines structs that begin with their size and end with zeros.
macro_rules! structs {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            pub(crate) struct $name {
                pub struct_size: usize,
                pub extension_start: *mut Extension,
                $(pub $field: $type,)*
                reserve: [usize; RESERVE],
            }

            impl $name {
                /// Returns a struct in which everything but the size is zero.
                pub(crate) fn new() -> Self {
                    // SAFETY: All fields are integers, booleans and pointers, for which zero is valid.
                    let mut zeroed: Self = unsafe { std::mem::zeroed() };
                    zeroed.struct_size = size_of::<Self>();
                    zeroed
                }
            }
        )*
    };
}

/// Defines structs that functions take, with the index and name of the function.
macro_rules! functions {
    ($($place:literal $called:literal $name:ident { $($first:ident: $object:ty $(, $field:ident: $type:ty)* $(,)?)? })*) => {
        structs! { $($name { $($first: $object $(, $field: $type)*)? })* }
        $(
            $(impl $name {
                /// Returns a struct with this value of the first field, usually the object that the function is called for.
                pub(crate) fn of($first: $object) -> Self {
                    Self { $first, ..Self::new() }
                }
            })?

            impl Function for $name {
                const PLACE: usize = $place;
                const NAME: &str = $called;
            }
        )*
    };
}

structs! {
    ProgramText { code: *const c_char, code_size: usize, format: *const c_char, format_size: usize }
    ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut c_void,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
        multi_slice_config: *mut c_void,
        use_major_to_minor_data_layout_for_callbacks: bool,
        hlo_output_callbacks: *mut c_void,
        num_hlo_output_callbacks: usize,
    }
}

functions! {
    0 "PJRT_Error_Destroy" ErrorDestroy { error: *mut RawError }
    1 "PJRT_Error_Message" ErrorMessage { error: *const RawError, message: *const c_char, message_size: usize }
    2 "PJRT_Error_GetCode" ErrorGetCode { error: *const RawError, code: c_int }
    3 "PJRT_Plugin_Initialize" PluginInitialize {}
    4 "PJRT_Plugin_Attributes" PluginAttributes { attributes: *const NamedValue, num_attributes: usize }
    5 "PJRT_Event_Destroy" EventDestroy { event: *mut RawEvent }
    8 "PJRT_Event_Await" EventAwait { event: *mut RawEvent }
    9 "PJRT_Event_OnReady" EventOnReady {
        event: *mut RawEvent,
        callback: Option<unsafe extern "C" fn(*mut RawError, *mut c_void)>,
        user_arg: *mut c_void,
    }
    10 "PJRT_Client_Create" ClientCreate {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *mut c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut RawClient,
        kv_try_get_callback: *mut c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    11 "PJRT_Client_Destroy" ClientDestroy { client: *mut RawClient }
    12 "PJRT_Client_PlatformName" ClientPlatformName { client: *mut RawClient, name: *const c_char, name_size: usize }
    14 "PJRT_Client_PlatformVersion" ClientPlatformVersion { client: *mut RawClient, version: *const c_char, version_size: usize }
    16 "PJRT_Client_AddressableDevices" ClientAddressableDevices {
        client: *mut RawClient,
        devices: *const *mut RawDevice,
        num_devices: usize,
    }
    20 "PJRT_Client_Compile" ClientCompile {
        client: *mut RawClient,
        program: *const ProgramText,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut RawLoaded,
    }
    22 "PJRT_Client_BufferFromHostBuffer" ClientBufferFromHostBuffer {
        client: *mut RawClient,
        data: *const c_void,
        element_type: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_int,
        device: *mut RawDevice,
        memory: *mut RawMemory,
        device_layout: *mut Layout,
        done_with_host_buffer: *mut RawEvent,
        buffer: *mut RawBuffer,
    }
    26 "PJRT_DeviceDescription_Kind" DeviceDescriptionKind { description: *mut RawDescription, kind: *const c_char, kind_size: usize }
    29 "PJRT_Device_GetDescription" DeviceGetDescription { device: *mut RawDevice, description: *mut RawDescription }
    40 "PJRT_Executable_Destroy" ExecutableDestroy { executable: *mut RawExecutable }
    46 "PJRT_Executable_GetCostAnalysis" ExecutableGetCostAnalysis {
        executable: *mut RawExecutable,
        num_properties: usize,
        properties: *const NamedValue,
    }
    49 "PJRT_Executable_Serialize" ExecutableSerialize {
        executable: *const RawExecutable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_executable: *mut c_void,
        serialized_executable_deleter: Option<unsafe extern "C" fn(*mut c_void)>,
    }
    50 "PJRT_LoadedExecutable_Destroy" LoadedExecutableDestroy { executable: *mut RawLoaded }
    51 "PJRT_LoadedExecutable_GetExecutable" LoadedExecutableGetExecutable {
        loaded_executable: *mut RawLoaded,
        executable: *mut RawExecutable,
    }
    55 "PJRT_LoadedExecutable_Execute" LoadedExecutableExecute {
        executable: *mut RawLoaded,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut RawBuffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut RawBuffer,
        device_complete_events: *mut *mut RawEvent,
        execute_device: *mut RawDevice,
    }
    56 "PJRT_Executable_DeserializeAndLoad" ExecutableDeserializeAndLoad {
        client: *mut RawClient,
        serialized_executable: *const c_char,
        serialized_executable_size: usize,
        loaded_executable: *mut RawLoaded,
        overridden_serialized_compile_options: *const c_char,
        overridden_serialized_compile_options_size: usize,
        load_options: *mut c_void,
    }
    58 "PJRT_Buffer_Destroy" BufferDestroy { buffer: *mut RawBuffer }
    59 "PJRT_Buffer_ElementType" BufferElementType { buffer: *mut RawBuffer, element_type: c_int }
    60 "PJRT_Buffer_Dimensions" BufferDimensions { buffer: *mut RawBuffer, dims: *const i64, num_dims: usize }
    63 "PJRT_Buffer_GetMemoryLayout" BufferGetMemoryLayout { buffer: *mut RawBuffer, layout: HostLayout }
    64 "PJRT_Buffer_OnDeviceSizeInBytes" BufferOnDeviceSizeInBytes { buffer: *mut RawBuffer, bytes: usize }
    70 "PJRT_Buffer_ToHostBuffer" BufferToHostBuffer {
        src: *mut RawBuffer,
        host_layout: *mut HostLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut RawEvent,
    }
    71 "PJRT_Buffer_IsOnCpu" BufferIsOnCpu { buffer: *mut RawBuffer, is_on_cpu: bool }
    72 "PJRT_Buffer_ReadyEvent" BufferReadyEvent { buffer: *mut RawBuffer, event: *mut RawEvent }
    74 "PJRT_Buffer_IncreaseExternalReferenceCount" BufferIncreaseExternalReferenceCount { buffer: *mut RawBuffer }
    75 "PJRT_Buffer_DecreaseExternalReferenceCount" BufferDecreaseExternalReferenceCount { buffer: *mut RawBuffer }
    76 "PJRT_Buffer_OpaqueDeviceMemoryDataPointer" BufferOpaqueDeviceMemoryDataPointer {
        buffer: *mut RawBuffer,
        device_memory_ptr: *const c_void,
    }
    90 "PJRT_Executable_OutputElementTypes" ExecutableOutputElementTypes {
        executable: *mut RawExecutable,
        output_types: *const c_int,
        num_output_types: usize,
    }
    91 "PJRT_Executable_OutputDimensions" ExecutableOutputDimensions {
        executable: *mut RawExecutable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    96 "PJRT_Executable_GetCompiledMemoryStats" ExecutableGetCompiledMemoryStats {
        executable: *mut RawExecutable,
        generated_code: i64,
        arguments: i64,
        outputs: i64,
        aliased: i64,
        temporaries: i64,
        // The next five fields have the same meaning for host memory.
        host: [i64; 5],
        peak: i64,
        // Total, indefinite allocations, peak of the unpadded heap.
        more: [i64; 4],
    }
}

/// `PJRT_Buffer_MemoryLayout` with a `PJRT_Buffer_MemoryLayout_Tiled`, which fills the whole union. Dimensions are listed from minor to
/// major.
#[repr(C)]
pub(crate) struct HostLayout {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub tiled_struct_size: usize,
    pub tiled_extension_start: *mut Extension,
    pub minor_to_major: *const i64,
    pub minor_to_major_size: usize,
    pub tile_dims: *const i64,
    pub tile_dim_sizes: *const usize,
    pub num_tiles: usize,
    /// `PJRT_Buffer_MemoryLayout_Type`; 0 means tiled.
    pub kind: c_int,
}

impl HostLayout {
    /// Returns whether the layout is row-major without tiles, for this number of dimensions.
    ///
    /// # Safety
    /// The pointers in the layout must be valid.
    pub(crate) unsafe fn is_row_major(&self, dimensions: usize) -> bool {
        if self.kind != 0 || self.num_tiles != 0 || self.minor_to_major_size != dimensions {
            return false;
        }
        // SAFETY: Guaranteed by the caller; the array has `dimensions` elements.
        (0..dimensions).all(|place| unsafe { *self.minor_to_major.add(place) } == (dimensions - 1 - place) as i64)
    }

    /// Returns a layout with this order of dimensions, without tiles. Valid as long as the slice.
    pub(crate) fn tiled(minor_to_major: &[i64]) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            extension_start: std::ptr::null_mut(),
            tiled_struct_size: 7 * size_of::<usize>(),
            tiled_extension_start: std::ptr::null_mut(),
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            tile_dims: std::ptr::null(),
            tile_dim_sizes: std::ptr::null(),
            num_tiles: 0,
            kind: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes in the header's `static_assert`s, which do not include the reserved zeros.
    #[test]
    fn structs_are_as_large_as_the_header_has_them() {
        let without = |bytes: usize| bytes - RESERVE * 8;
        assert_eq!(without(size_of::<ClientCreate>()), 88);
        assert_eq!(without(size_of::<ProgramText>()), 48);
        assert_eq!(without(size_of::<ClientCompile>()), 56);
        assert_eq!(without(size_of::<ClientBufferFromHostBuffer>()), 120);
        assert_eq!(without(size_of::<ExecuteOptions>()), 144);
        assert_eq!(without(size_of::<LoadedExecutableExecute>()), 80);
        assert_eq!(without(size_of::<ExecutableGetCompiledMemoryStats>()), 144);
        assert_eq!(without(size_of::<BufferToHostBuffer>()), 56);
        assert_eq!(without(size_of::<BufferGetMemoryLayout>()), 104);
        assert_eq!(without(size_of::<BufferOpaqueDeviceMemoryDataPointer>()), 32);
        assert_eq!(without(size_of::<ExecutableDeserializeAndLoad>()), 72);
        assert_eq!(without(size_of::<ExecutableSerialize>()), 56);
        assert_eq!(size_of::<NamedValue>(), 56);
        assert_eq!(size_of::<Api>(), 40);
    }
}
