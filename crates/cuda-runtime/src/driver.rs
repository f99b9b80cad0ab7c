//! The driver library, `libcuda.so.1`, opened at the first use.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use parking_lot::Mutex;
use sahasra_cuda_boundary::{log, process};

use crate::Error;
use crate::boundary::{Handle, In, Out, Pointer, Text, is_stream_of_thread};

pub mod structures;

use structures::{
    DriverConfiguration, DriverDescription, DriverLaunch, DriverPlanes, DriverResource, DriverSampling, DriverView, DriverVolumes,
    NodeParameters,
};

/// Name of the driver library.
const LIBRARY: &CStr = c"libcuda.so.1";

/// Declares the functions of the driver API that the runtime calls: fields with their addresses, and methods that call them.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// Functions of the driver library; `None` where it lacks one. The second form of each has a default stream for each thread, if the
        /// driver has such a form.
        #[allow(non_snake_case, reason = "the names of the driver API")]
        pub struct Driver {
            $($name: [Option<unsafe extern "C" fn($($type),*) -> c_uint>; 2],)*
        }

        #[allow(non_snake_case, missing_docs, clippy::too_many_arguments, reason = "the functions of the driver API")]
        impl Driver {
            fn load(library: *mut c_void) -> Self {
                Self {
                    $($name: forms(library, stringify!($name)).map(|form| form.map(|address| {
                        // SAFETY: the CUDA driver API documents this type for the function.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_uint>(address) }
                    })),)*
                }
            }

            $(pub fn $name(&self, $($argument: $type),*) -> Result<(), Error> {
                let function = self.$name[usize::from(is_stream_of_thread())].ok_or(Error::CALL_REQUIRES_NEWER_DRIVER)?;
                // SAFETY: the arguments are those of the runtime's caller, or places of the runtime's own.
                Error::check(unsafe { function($($argument),*) })
            })*
        }
    };
}

/// Addresses of a function of the library, and of its form with a default stream for each thread.
fn forms(library: *mut c_void, name: &str) -> [Option<*mut c_void>; 2] {
    let symbol = |ending: &str| {
        let name = CString::new(format!("{name}{ending}")).ok()?;
        // SAFETY: the library is open and the name ends with a zero byte.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let own = symbol("");
    [own, symbol("_ptsz").or_else(|| symbol("_ptds")).or(own)]
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: Out<c_int>);
    fn cuGetProcAddress_v2(name: Text, function: Out<usize>, version: c_int, flags: u64, status: Out<c_uint>);

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int);
    fn cuDeviceGetCount(count: Out<c_int>);
    fn cuDeviceGetName(name: Out<u8>, length: c_int, device: c_int);
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int);
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int);
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int);
    fn cuDeviceGetByPCIBusId(device: Out<c_int>, text: Text);
    fn cuDeviceGetPCIBusId(text: Out<c_char>, length: c_int, device: c_int);
    fn cuDeviceCanAccessPeer(can_access: Out<c_int>, device: c_int, peer: c_int);
    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_uint, device: c_int, peer: c_int);
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int);
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int);
    fn cuDeviceSetMemPool(device: c_int, pool: Handle);

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int);
    fn cuDevicePrimaryCtxReset_v2(device: c_int);
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint);
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, is_active: Out<c_int>);
    fn cuCtxSetCurrent(context: Handle);
    fn cuCtxGetCurrent(context: Out<Handle>);
    fn cuCtxGetDevice(device: Out<c_int>);
    fn cuCtxGetId(context: Handle, id: Out<u64>);
    fn cuCtxSynchronize();
    fn cuCtxGetLimit(value: Out<usize>, limit: c_uint);
    fn cuCtxSetLimit(limit: c_uint, value: usize);
    fn cuCtxGetCacheConfig(preference: Out<c_uint>);
    fn cuCtxSetCacheConfig(preference: c_uint);
    fn cuCtxGetSharedMemConfig(size: Out<c_uint>);
    fn cuCtxSetSharedMemConfig(size: c_uint);
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>);
    fn cuCtxResetPersistingL2Cache();
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
    fn cuCtxDisablePeerAccess(peer: Handle);

    fn cuModuleLoadData(module: Out<Handle>, image: Pointer);
    fn cuModuleUnload(module: Handle);
    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text);
    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text);
    fn cuLibraryLoadData(library: Out<Handle>, image: Pointer, options: In<c_uint>, values: Out<usize>, count: c_uint,
        library_options: In<c_uint>, library_values: Out<usize>, library_count: c_uint);
    fn cuLibraryLoadFromFile(library: Out<Handle>, path: Text, options: In<c_uint>, values: Out<usize>, count: c_uint,
        library_options: In<c_uint>, library_values: Out<usize>, library_count: c_uint);
    fn cuLibraryUnload(library: Handle);
    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text);
    fn cuLibraryGetKernelCount(count: Out<c_uint>, library: Handle);
    fn cuLibraryEnumerateKernels(kernels: Out<Handle>, count: c_uint, library: Handle);
    fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text);
    fn cuLibraryGetManaged(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text);
    fn cuLibraryGetUnifiedFunction(function: Out<usize>, library: Handle, name: Text);
    fn cuKernelSetAttribute(attribute: c_uint, value: c_int, kernel: Handle, device: c_int);

    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: Handle);
    fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int);
    fn cuFuncSetCacheConfig(function: Handle, preference: c_uint);
    fn cuFuncSetSharedMemConfig(function: Handle, size: c_uint);
    fn cuFuncGetName(name: Out<Text>, function: Handle);
    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>);
    fn cuFuncGetParamCount(function: Handle, count: Out<usize>);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<c_int>, function: Handle, threads: c_int, shared_bytes: usize, flags: c_uint);
    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Handle, blocks: c_int, threads: c_int);
    fn cuOccupancyMaxActiveClusters(clusters: Out<c_int>, function: Handle, configuration: In<DriverConfiguration>);
    fn cuOccupancyMaxPotentialClusterSize(size: Out<c_int>, function: Handle, configuration: In<DriverConfiguration>);
    fn cuLaunchKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: Handle, parameters: Pointer, extra: Pointer);
    fn cuLaunchCooperativeKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: Handle, parameters: Pointer);
    fn cuLaunchKernelEx(configuration: In<DriverConfiguration>, function: Handle, parameters: Pointer, extra: Pointer);
    fn cuLaunchHostFunc(stream: Handle, function: Pointer, data: Pointer);

    fn cuArray3DCreate_v2(array: Out<Handle>, description: In<DriverDescription>);
    fn cuArray3DGetDescriptor_v2(description: Out<DriverDescription>, array: Handle);
    fn cuArrayDestroy(array: Handle);
    fn cuArrayGetPlane(plane: Out<Handle>, array: Handle, index: c_uint);
    fn cuArrayGetSparseProperties(properties: Pointer, array: Handle);
    fn cuArrayGetMemoryRequirements(requirements: Pointer, array: Handle, device: c_int);
    fn cuDeviceGetTexture1DLinearMaxWidth(texels: Out<usize>, format: c_uint, channels: c_uint, device: c_int);
    fn cuTexObjectCreate(object: Out<u64>, resource: In<DriverResource>, sampling: In<DriverSampling>, view: In<DriverView>);
    fn cuTexObjectDestroy(object: u64);
    fn cuTexObjectGetResourceDesc(resource: Out<DriverResource>, object: u64);
    fn cuTexObjectGetTextureDesc(sampling: Out<DriverSampling>, object: u64);
    fn cuTexObjectGetResourceViewDesc(view: Out<DriverView>, object: u64);
    fn cuSurfObjectCreate(object: Out<u64>, resource: In<DriverResource>);
    fn cuSurfObjectDestroy(object: u64);
    fn cuSurfObjectGetResourceDesc(resource: Out<DriverResource>, object: u64);

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>);
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize);
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element_bytes: c_uint);
    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: c_uint);
    fn cuMemFree_v2(address: u64);
    fn cuMemHostAlloc(pointer: Out<Pointer>, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(pointer: Pointer);
    fn cuMemHostRegister_v2(pointer: Pointer, bytes: usize, flags: c_uint);
    fn cuMemHostUnregister(pointer: Pointer);
    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: Pointer, flags: c_uint);
    fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: Pointer);
    fn cuMemAdvise(address: u64, bytes: usize, advice: c_uint, device: c_int);
    fn cuMemAdvise_v2(address: u64, bytes: usize, advice: c_uint, location: u64);
    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: c_int, stream: Handle);
    fn cuMemPrefetchAsync_v2(address: u64, bytes: usize, location: u64, flags: c_uint, stream: Handle);
    fn cuPointerGetAttributes(count: c_uint, attributes: In<c_uint>, values: In<Out<u64>>, address: u64);
    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle);
    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle);
    fn cuMemFreeAsync(address: u64, stream: Handle);
    fn cuMemPoolCreate(pool: Out<Handle>, properties: Pointer);
    fn cuMemPoolDestroy(pool: Handle);
    fn cuMemPoolTrimTo(pool: Handle, bytes: usize);
    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>);
    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>);
    fn cuMemPoolSetAccess(pool: Handle, access: Pointer, count: usize);
    fn cuMemPoolGetAccess(flags: Out<c_uint>, pool: Handle, location: Pointer);

    fn cuMemcpy(to: u64, from: u64, bytes: usize);
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpyHtoD_v2(to: u64, from: Pointer, bytes: usize);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: Pointer, bytes: usize, stream: Handle);
    fn cuMemcpyDtoH_v2(to: Pointer, from: u64, bytes: usize);
    fn cuMemcpyDtoHAsync_v2(to: Pointer, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpy2DUnaligned_v2(parameters: In<DriverPlanes>);
    fn cuMemcpy2DAsync_v2(parameters: In<DriverPlanes>, stream: Handle);
    fn cuMemcpyAtoA_v2(to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize);
    fn cuMemcpy3D_v2(parameters: In<DriverVolumes>);
    fn cuMemcpy3DAsync_v2(parameters: In<DriverVolumes>, stream: Handle);
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize);
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle);
    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize);
    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle);

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: Handle);
    fn cuStreamSynchronize(stream: Handle);
    fn cuStreamQuery(stream: Handle);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>);
    fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>);
    fn cuStreamGetId(stream: Handle, id: Out<u64>);
    fn cuStreamGetDevice(stream: Handle, device: Out<c_int>);
    fn cuStreamAddCallback(stream: Handle, callback: Pointer, data: Pointer, flags: c_uint);
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>);
    fn cuStreamGetCaptureInfo_v3(stream: Handle, status: Out<c_uint>, id: Out<u64>, graph: Out<Handle>, nodes: Out<usize>, edges: Out<usize>,
        count: Out<usize>);
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint);
    fn cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, nodes: Pointer, edges: Pointer, count: usize, mode: c_uint);
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>);
    fn cuStreamUpdateCaptureDependencies_v2(stream: Handle, nodes: Pointer, edges: Pointer, count: usize, flags: c_uint);
    fn cuStreamAttachMemAsync(stream: Handle, address: u64, bytes: usize, flags: c_uint);
    fn cuStreamCopyAttributes(to: Handle, from: Handle);
    fn cuStreamGetAttribute(stream: Handle, attribute: c_uint, value: Pointer);
    fn cuStreamSetAttribute(stream: Handle, attribute: c_uint, value: Pointer);
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>);
    fn cuEventCreate(event: Out<Handle>, flags: c_uint);
    fn cuEventRecord(event: Handle, stream: Handle);
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint);
    fn cuEventQuery(event: Handle);
    fn cuEventSynchronize(event: Handle);
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle);
    fn cuEventDestroy_v2(event: Handle);

    fn cuGraphCreate(graph: Out<Handle>, flags: c_uint);
    fn cuGraphDestroy(graph: Handle);
    fn cuGraphClone(clone: Out<Handle>, graph: Handle);
    fn cuGraphNodeFindInClone(node: Out<Handle>, original: Handle, clone: Handle);
    fn cuGraphNodeGetType(node: Handle, kind: Out<c_uint>);
    fn cuGraphNodeGetContainingGraph(node: Handle, graph: Out<Handle>);
    fn cuGraphNodeGetLocalId(node: Handle, id: Out<c_uint>);
    fn cuGraphNodeGetToolsId(node: Handle, id: Out<u64>);
    fn cuGraphGetId(graph: Handle, id: Out<c_uint>);
    fn cuGraphExecGetId(executable: Handle, id: Out<c_uint>);
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>);
    fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>);
    fn cuGraphGetEdges_v2(graph: Handle, from: Out<Handle>, to: Out<Handle>, edges: Pointer, count: Out<usize>);
    fn cuGraphNodeGetDependencies_v2(node: Handle, nodes: Out<Handle>, edges: Pointer, count: Out<usize>);
    fn cuGraphNodeGetDependentNodes_v2(node: Handle, nodes: Out<Handle>, edges: Pointer, count: Out<usize>);
    fn cuGraphAddDependencies_v2(graph: Handle, from: Pointer, to: Pointer, edges: Pointer, count: usize);
    fn cuGraphRemoveDependencies_v2(graph: Handle, from: Pointer, to: Pointer, edges: Pointer, count: usize);
    fn cuGraphDestroyNode(node: Handle);
    fn cuGraphDebugDotPrint(graph: Handle, path: Text, flags: c_uint);
    fn cuGraphAddKernelNode_v2(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: In<DriverLaunch>);
    fn cuGraphKernelNodeGetParams_v2(node: Handle, parameters: Out<DriverLaunch>);
    fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: In<DriverLaunch>);
    fn cuGraphExecKernelNodeSetParams_v2(executable: Handle, node: Handle, parameters: In<DriverLaunch>);
    fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle);
    fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: c_uint, value: Pointer);
    fn cuGraphKernelNodeSetAttribute(node: Handle, attribute: c_uint, value: Pointer);
    fn cuGraphAddMemcpyNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: In<DriverVolumes>,
        context: Handle);
    fn cuGraphMemcpyNodeGetParams(node: Handle, parameters: Out<DriverVolumes>);
    fn cuGraphMemcpyNodeSetParams(node: Handle, parameters: In<DriverVolumes>);
    fn cuGraphExecMemcpyNodeSetParams(executable: Handle, node: Handle, parameters: In<DriverVolumes>, context: Handle);
    fn cuGraphAddMemsetNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: Pointer, context: Handle);
    fn cuGraphMemsetNodeGetParams(node: Handle, parameters: Pointer);
    fn cuGraphMemsetNodeSetParams(node: Handle, parameters: Pointer);
    fn cuGraphExecMemsetNodeSetParams(executable: Handle, node: Handle, parameters: Pointer, context: Handle);
    fn cuGraphAddHostNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: Pointer);
    fn cuGraphHostNodeGetParams(node: Handle, parameters: Pointer);
    fn cuGraphHostNodeSetParams(node: Handle, parameters: Pointer);
    fn cuGraphExecHostNodeSetParams(executable: Handle, node: Handle, parameters: Pointer);
    fn cuGraphAddChildGraphNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, child: Handle);
    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>);
    fn cuGraphExecChildGraphNodeSetParams(executable: Handle, node: Handle, child: Handle);
    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize);
    fn cuGraphAddEventRecordNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, event: Handle);
    fn cuGraphAddEventWaitNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, event: Handle);
    fn cuGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>);
    fn cuGraphEventRecordNodeSetEvent(node: Handle, event: Handle);
    fn cuGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>);
    fn cuGraphEventWaitNodeSetEvent(node: Handle, event: Handle);
    fn cuGraphExecEventRecordNodeSetEvent(executable: Handle, node: Handle, event: Handle);
    fn cuGraphExecEventWaitNodeSetEvent(executable: Handle, node: Handle, event: Handle);
    fn cuGraphAddMemAllocNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: Pointer);
    fn cuGraphMemAllocNodeGetParams(node: Handle, parameters: Pointer);
    fn cuGraphAddMemFreeNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, address: u64);
    fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>);
    fn cuGraphAddNode_v2(node: Out<Handle>, graph: Handle, before: Pointer, edges: Pointer, count: usize, parameters: Out<NodeParameters>);
    fn cuGraphNodeSetParams(node: Handle, parameters: Out<NodeParameters>);
    fn cuGraphNodeGetParams(node: Handle, parameters: Out<NodeParameters>);
    fn cuGraphExecNodeSetParams(executable: Handle, node: Handle, parameters: Out<NodeParameters>);
    fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, flags: u64);
    fn cuGraphInstantiateWithParams(executable: Out<Handle>, graph: Handle, parameters: Pointer);
    fn cuGraphExecGetFlags(executable: Handle, flags: Out<u64>);
    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, result: Pointer);
    fn cuGraphUpload(executable: Handle, stream: Handle);
    fn cuGraphLaunch(executable: Handle, stream: Handle);
    fn cuGraphExecDestroy(executable: Handle);
    fn cuGraphNodeSetEnabled(executable: Handle, node: Handle, is_enabled: c_uint);
    fn cuGraphNodeGetEnabled(executable: Handle, node: Handle, is_enabled: Out<c_uint>);
    fn cuDeviceGraphMemTrim(device: c_int);
    fn cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_uint, value: Out<u64>);
    fn cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_uint, value: Out<u64>);
    fn cuUserObjectCreate(object: Out<Handle>, data: Pointer, destroy: Pointer, references: c_uint, flags: c_uint);
    fn cuUserObjectRetain(object: Handle, count: c_uint);
    fn cuUserObjectRelease(object: Handle, count: c_uint);
    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint);
    fn cuGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint);
}

/// The driver library, not initialised. [`Error::INSUFFICIENT_DRIVER`] if there is none, as for a driver that is too old.
pub fn library() -> Result<&'static Driver, Error> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    process::check::<Error>()?;
    let driver = DRIVER.get_or_init(|| {
        // SAFETY: the name ends with a zero byte. The library stays open.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            log::once(format!("{} is not found: set LD_LIBRARY_PATH", LIBRARY.to_string_lossy()));
            return None;
        }
        Some(Driver::load(library))
    });
    driver.as_ref().ok_or(Error::INSUFFICIENT_DRIVER)
}

/// The driver library, initialised. A failed initialisation is tried again at the next call.
pub fn get() -> Result<&'static Driver, Error> {
    static INITIALISED: OnceLock<()> = OnceLock::new();
    static INITIALISING: Mutex<()> = Mutex::new(());
    let driver = library()?;
    if INITIALISED.get().is_none() {
        if !process::refuse_children() {
            return Err(Error::OPERATING_SYSTEM);
        }
        let _one_at_a_time = INITIALISING.lock();
        if INITIALISED.get().is_none() {
            driver.cuInit(0)?;
            INITIALISED.get_or_init(|| ());
        }
    }
    Ok(driver)
}
