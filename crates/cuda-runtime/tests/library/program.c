/* A program of the CUDA runtime API, with its own declarations of what it calls. It does by hand what a compiler for CUDA emits: an image with
 * PTX, stubs of kernels, and their registration before main. The first argument names what to run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int error_t_;
typedef struct { unsigned x, y, z; } dim3_;
typedef void *stream_t, *event_t, *pool_t;
typedef struct { void *pointer; size_t pitch, width, height; } pitched;
typedef struct { size_t width, height, depth; } extent;
typedef struct { void *array; size_t position[3]; pitched pointer; } side;
typedef struct { side from, to; extent size; int kind; } volumes;
typedef struct { dim3_ grid, block; size_t shared; stream_t stream; void *attributes; unsigned count; } configuration;
typedef struct { unsigned id, padding; union { int integer; char bytes[64]; } value; } attribute;
typedef struct { size_t shared, constant, local; int threads, registers, rest[24]; } function_attributes;
typedef struct { int kind, device; void *device_pointer, *host_pointer; long reserved[8]; } pointer_attributes;
typedef struct { unsigned magic, version; const void *image; void *rest; } wrapper;

void **__cudaRegisterFatBinary(const wrapper *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(dim3_, dim3_, size_t, stream_t);
error_t_ __cudaPopCallConfiguration(dim3_ *, dim3_ *, size_t *, stream_t *);
error_t_ __cudaGetKernel(void **, const void *);
error_t_ __cudaLaunchKernel(void *, dim3_, dim3_, void **, size_t, stream_t);
error_t_ cudaLaunchKernel(const void *, dim3_, dim3_, void **, size_t, stream_t);
error_t_ cudaLaunchKernel_ptsz(const void *, dim3_, dim3_, void **, size_t, stream_t);
error_t_ cudaLaunchCooperativeKernel(const void *, dim3_, dim3_, void **, size_t, stream_t);
error_t_ cudaLaunchKernelExC(const configuration *, const void *, void **);
error_t_ cudaMalloc(void **, size_t);
error_t_ cudaMallocAsync(void **, size_t, stream_t);
error_t_ cudaMallocManaged(void **, size_t, unsigned);
error_t_ cudaMallocHost(void **, size_t);
error_t_ cudaMallocPitch(void **, size_t *, size_t, size_t);
error_t_ cudaMalloc3D(pitched *, extent);
error_t_ cudaFree(void *);
error_t_ cudaFreeAsync(void *, stream_t);
error_t_ cudaFreeHost(void *);
error_t_ cudaMemcpy(void *, const void *, size_t, int);
error_t_ cudaMemcpyAsync(void *, const void *, size_t, int, stream_t);
error_t_ cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
error_t_ cudaMemcpy3D(const volumes *);
error_t_ cudaMemset(void *, int, size_t);
error_t_ cudaMemset2D(void *, size_t, int, size_t, size_t);
error_t_ cudaMemset3D(pitched, int, extent);
error_t_ cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
error_t_ cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int);
error_t_ cudaGetSymbolAddress(void **, const void *);
error_t_ cudaGetSymbolSize(size_t *, const void *);
error_t_ cudaMemGetInfo(size_t *, size_t *);
error_t_ cudaPointerGetAttributes(pointer_attributes *, const void *);
error_t_ cudaFuncGetAttributes(function_attributes *, const void *);
error_t_ cudaFuncSetAttribute(const void *, int, int);
error_t_ cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
error_t_ cudaStreamCreate(stream_t *);
error_t_ cudaStreamSynchronize(stream_t);
error_t_ cudaStreamDestroy(stream_t);
error_t_ cudaStreamWaitEvent(stream_t, event_t, unsigned);
error_t_ cudaStreamIsCapturing(stream_t, int *);
error_t_ cudaEventCreate(event_t *);
error_t_ cudaEventRecord(event_t, stream_t);
error_t_ cudaEventSynchronize(event_t);
error_t_ cudaEventElapsedTime(float *, event_t, event_t);
error_t_ cudaEventDestroy(event_t);
error_t_ cudaLaunchHostFunc(stream_t, void (*)(void *), void *);
error_t_ cudaDeviceGetDefaultMemPool(pool_t *, int);
error_t_ cudaMemPoolGetAttribute(pool_t, int, void *);
error_t_ cudaDeviceSynchronize(void);
error_t_ cudaDeviceReset(void);
error_t_ cudaSetDevice(int);
error_t_ cudaGetDevice(int *);
error_t_ cudaGetDeviceCount(int *);
error_t_ cudaRuntimeGetVersion(int *);
error_t_ cudaDriverGetVersion(int *);
error_t_ cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
error_t_ cudaGraphConditionalHandleCreate(void *, void *, unsigned, unsigned);
error_t_ cudaStreamBeginCapture(stream_t, int);
error_t_ cudaMemsetAsync(void *, int, size_t, stream_t);
error_t_ cudaMemsetAsync_ptsz(void *, int, size_t, stream_t);
error_t_ cudaStreamEndCapture(stream_t, void **);
#if VERSION == 12
error_t_ cudaStreamGetCaptureInfo_v2(stream_t, int *, unsigned long long *, void **, const void ***, size_t *);
error_t_ cudaGraphAddDependencies(void *, void **, void **, size_t);
error_t_ cudaGraphAddNode(void **, void *, const void *, size_t, void *);
#define NO_EDGES
#else
error_t_ cudaStreamGetCaptureInfo(stream_t, int *, unsigned long long *, void **, const void ***, const void **, size_t *);
error_t_ cudaGraphAddDependencies(void *, void **, void **, const void *, size_t);
error_t_ cudaGraphAddNode(void **, void *, const void *, const void *, size_t, void *);
#define NO_EDGES NULL,
#endif
typedef struct { void *function; dim3_ grid, block; unsigned shared; void **parameters, **extra; } kernel_node;
typedef struct { void *to; size_t pitch; unsigned value, element; size_t width, height; } fill_node;
error_t_ cudaGraphCreate(void **, unsigned);
error_t_ cudaGraphAddKernelNode(void **, void *, void *const *, size_t, const kernel_node *);
error_t_ cudaGraphKernelNodeGetParams(void *, kernel_node *);
error_t_ cudaGraphExecKernelNodeSetParams(void *, void *, const kernel_node *);
error_t_ cudaGraphAddMemcpyNode(void **, void *, void *const *, size_t, const volumes *);
error_t_ cudaGraphAddMemcpyNode1D(void **, void *, void *const *, size_t, void *, const void *, size_t, int);
error_t_ cudaGraphMemcpyNodeGetParams(void *, volumes *);
error_t_ cudaGraphAddMemcpyNodeToSymbol(void **, void *, void *const *, size_t, const void *, const void *, size_t, size_t, int);
error_t_ cudaGraphAddMemsetNode(void **, void *, void *const *, size_t, const fill_node *);
error_t_ cudaGraphGetNodes(void *, void **, size_t *);
error_t_ cudaGraphInstantiate(void **, void *, unsigned long long);
error_t_ cudaGraphLaunch(void *, stream_t);
error_t_ cudaGraphExecDestroy(void *);
error_t_ cudaGraphDestroy(void *);
error_t_ cudaGetLastError(void);
error_t_ cudaPeekAtLastError(void);
const char *cudaGetErrorName(error_t_);
const char *cudaGetErrorString(error_t_);

#define CHECK(condition) \
    do { if (!(condition)) { printf("line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)
#define RETURNS(code, call) \
    do { int result = (call); if (result != (code)) { printf("line %d: %s: %d %s\n", __LINE__, #call, result, cudaGetErrorName(result)); exit(1); } } while (0)
#define OK(call) RETURNS(0, call)

enum { TO_DEVICE = 1, TO_HOST = 2, IN_DEVICE = 3, ANY = 4 };

static const char ptx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .const .align 4 .f32 scale = 0f40000000;\n"
    ".visible .global .align 4 .u32 counter[2];\n"
    ".visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n) {\n"
    "  .reg .pred %p; .reg .b32 %r<5>; .reg .f32 %f<5>; .reg .b64 %rd<5>;\n"
    "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;\n"
    "  ld.param.u32 %r4, [n]; setp.ge.u32 %p, %r1, %r4; @%p ret;\n"
    "  ld.param.f32 %f1, [a]; ld.const.f32 %f2, [scale]; mul.f32 %f1, %f1, %f2;\n"
    "  ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; mul.wide.u32 %rd3, %r1, 4;\n"
    "  add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;\n"
    "  ld.global.f32 %f3, [%rd1]; ld.global.f32 %f4, [%rd2]; fma.rn.f32 %f4, %f1, %f3, %f4; st.global.f32 [%rd2], %f4;\n"
    "  atom.global.add.u32 %r4, [counter+4], 1; ret;\n}\n"
    ".visible .entry snap() { trap; }\n";

/* An image: header, one entry, payload. */
struct image {
    unsigned magic; unsigned short version, header_bytes; unsigned long long bytes;
    unsigned short kind, unknown; unsigned entry_bytes; unsigned long long payload_bytes; unsigned packed_bytes, unknown2;
    unsigned short minor, major; unsigned architecture, name_offset, name_bytes; unsigned long long flags, zero, unpacked_bytes;
    char payload[sizeof ptx];
};
_Static_assert(__builtin_offsetof(struct image, payload) == 80, "16 and 64 bytes of headers");

static struct image images[2];
static wrapper wrappers[2];
static void **handles[2];

/* Stubs and shadows: only their addresses matter. */
void saxpy(float a, const float *x, float *y, unsigned n);
void snap(void) { OK(cudaLaunchKernel(snap, (dim3_){1, 1, 1}, (dim3_){1, 1, 1}, NULL, 0, NULL)); }
void machine_code(void) {}
void unregistered(void) {}
void uses_managed(void) {}
static char scale[4], counter[8];

void saxpy(float a, const float *x, float *y, unsigned n) {
    void *arguments[] = {&a, &x, &y, &n};
    dim3_ grid, block;
    size_t shared;
    stream_t stream;
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    OK(cudaLaunchKernel(saxpy, grid, block, arguments, shared, stream));
}

__attribute__((constructor)) static void registration(void) {
    for (int i = 0; i < 2; i++) {
        struct image *image = &images[i];
        image->magic = 0xBA55ED50, image->version = 1, image->header_bytes = 16, image->bytes = sizeof *image - 16;
        image->kind = i == 0 ? 1 : 2; /* PTX, then machine code */
        image->entry_bytes = 64, image->payload_bytes = sizeof ptx, image->architecture = 80;
        memcpy(image->payload, ptx, sizeof ptx);
        wrappers[i] = (wrapper){0x466243b1, 1, image, NULL};
        handles[i] = __cudaRegisterFatBinary(&wrappers[i]);
    }
    __cudaRegisterFunction(handles[0], (const char *)saxpy, (char *)saxpy, "saxpy", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handles[0], (const char *)snap, (char *)snap, "snap", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handles[1], (const char *)machine_code, (char *)machine_code, "machine_code", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(handles[0], scale, scale, "scale", 0, 4, 1, 0);
    __cudaRegisterVar(handles[0], counter, counter, "counter", 0, 8, 0, 0);
    for (int i = 0; i < 2; i++) __cudaRegisterFatBinaryEnd(handles[i]);
}

__attribute__((destructor)) static void end(void) {
    for (int i = 0; i < 2; i++) __cudaUnregisterFatBinary(handles[i]);
}

enum { N = 1000 };
static const dim3_ GRID = {8, 1, 1}, BLOCK = {128, 1, 1};

static void called(void *data) { *(int *)data += 1; }

static void launches(void) {
    float host[N], *x, *y;
    stream_t stream;
    event_t begin, finish;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&finish));
    OK(cudaMalloc((void **)&x, sizeof host));
    OK(cudaMallocManaged((void **)&y, sizeof host, 1));
    for (int i = 0; i < N; i++) host[i] = i, y[i] = 1;
    OK(cudaMemcpyAsync(x, host, sizeof host, TO_DEVICE, stream));
    float factor = 3;
    OK(cudaMemcpyToSymbol(scale, &factor, 4, 0, TO_DEVICE));
    OK(cudaEventRecord(begin, stream));
    /* saxpy<<<GRID, BLOCK, 0, stream>>>(2, x, y, N) */
    CHECK(__cudaPushCallConfiguration(GRID, BLOCK, 0, stream) == 0);
    saxpy(2, x, y, N);
    OK(cudaEventRecord(finish, stream));
    OK(cudaEventSynchronize(finish));
    for (int i = 0; i < N; i++) CHECK(y[i] == 6.0f * i + 1);
    float milliseconds = -1, a = 0.5;
    OK(cudaEventElapsedTime(&milliseconds, begin, finish));
    CHECK(milliseconds >= 0);

    /* The other ways to launch. */
    unsigned n = N, zero = 0;
    void *arguments[] = {&a, &x, &y, &n}, *kernel;
    OK(cudaLaunchKernel_ptsz(saxpy, GRID, BLOCK, arguments, 0, NULL));
    OK(cudaLaunchCooperativeKernel(saxpy, (dim3_){1, 1, 1}, (dim3_){1000, 1, 1}, arguments, 0, stream));
    attribute cooperative = {.id = 2, .value = {.integer = 0}};
    configuration with = {GRID, BLOCK, 0, stream, &cooperative, 1};
    OK(cudaLaunchKernelExC(&with, saxpy, arguments));
    OK(__cudaGetKernel(&kernel, saxpy));
    OK(__cudaLaunchKernel(kernel, GRID, BLOCK, arguments, 0, stream));
    int calls = 0;
    OK(cudaLaunchHostFunc(stream, called, &calls));
    OK(cudaDeviceSynchronize());
    CHECK(calls == 1);
    for (int i = 0; i < N; i++) CHECK(y[i] == 12.0f * i + 1);

    unsigned counts[2] = {9, 9};
    OK(cudaMemcpyFromSymbol(counts, counter, 8, 0, TO_HOST));
    CHECK(counts[0] == 0 && counts[1] == 5 * N);
    OK(cudaMemcpyToSymbol(counter, &zero, 4, 4, TO_DEVICE));
    void *address;
    size_t bytes;
    OK(cudaGetSymbolAddress(&address, counter));
    OK(cudaGetSymbolSize(&bytes, counter));
    OK(cudaMemcpy(counts, address, 8, ANY));
    CHECK(bytes == 8 && counts[1] == 0);

    function_attributes attributes;
    int blocks = 0, capturing = 9;
    OK(cudaFuncGetAttributes(&attributes, saxpy));
    CHECK(attributes.threads == 1024 && attributes.shared == 0);
    OK(cudaFuncSetAttribute(saxpy, 8, 100000));
    OK(cudaFuncGetAttributes(&attributes, saxpy));
    CHECK(attributes.rest[3] == 100000);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, saxpy, 1024, 0));
    CHECK(blocks == 2);
    OK(cudaStreamIsCapturing(stream, &capturing));
    CHECK(capturing == 0);
    OK(cudaStreamWaitEvent(NULL, finish, 0));
    OK(cudaEventDestroy(begin));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(x));
    OK(cudaFree(y));
    CHECK(cudaGetLastError() == 0);
}

static void memory(void) {
    unsigned char host[4 * 3 * 2], back[4 * 3 * 2] = {0}, *linear, *pinned;
    for (unsigned i = 0; i < sizeof host; i++) host[i] = i;
    OK(cudaMalloc((void **)&linear, sizeof host));
    OK(cudaMemcpy(linear, host, sizeof host, TO_DEVICE));
    OK(cudaMemset(linear + 4, 0xab, 4));
    OK(cudaMemcpy(back, linear, sizeof back, TO_HOST));
    CHECK(back[3] == 3 && back[4] == 0xab && back[7] == 0xab && back[8] == 8);
    OK(cudaMemcpy(back, host, sizeof host, ANY));
    CHECK(memcmp(back, host, sizeof host) == 0);

    unsigned char *rows;
    size_t pitch;
    OK(cudaMallocPitch((void **)&rows, &pitch, 4, 6));
    CHECK(pitch >= 4);
    OK(cudaMemcpy2D(rows, pitch, host, 4, 4, 6, TO_DEVICE));
    OK(cudaMemset2D(rows + pitch, pitch, 7, 2, 2));
    OK(cudaMemcpy2D(back, 4, rows, pitch, 4, 6, TO_HOST));
    CHECK(back[4] == 7 && back[5] == 7 && back[6] == 6 && back[8] == 7 && back[12] == 12);
    RETURNS(12, cudaMemcpy2D(rows, 3, host, 4, 4, 6, TO_DEVICE));

    pitched box;
    OK(cudaMalloc3D(&box, (extent){4, 3, 2}));
    CHECK(box.width == 4 && box.height == 3 && box.pitch >= 4);
    OK(cudaMemset3D(box, 1, (extent){4, 3, 2}));
    volumes up = {{0, {0, 0, 0}, {host, 4, 4, 3}}, {0, {1, 1, 1}, box}, {2, 2, 1}, TO_DEVICE};
    OK(cudaMemcpy3D(&up));
    volumes down = {{0, {0, 0, 0}, box}, {0, {0, 0, 0}, {back, 4, 4, 3}}, {4, 3, 2}, TO_HOST};
    OK(cudaMemcpy3D(&down));
    const unsigned char want[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 4, 5, 1};
    CHECK(memcmp(back, want, sizeof want) == 0);
    OK(cudaMemset3D(box, 2, (extent){4, 1, 2}));
    OK(cudaMemcpy3D(&down));
    CHECK(back[0] == 2 && back[4] == 1 && back[12] == 2 && back[16] == 1);

    pointer_attributes attributes;
    OK(cudaMallocHost((void **)&pinned, 16));
    OK(cudaPointerGetAttributes(&attributes, pinned));
    CHECK(attributes.kind == 1 && attributes.device == 0 && attributes.host_pointer == pinned && attributes.device_pointer == pinned);
    OK(cudaPointerGetAttributes(&attributes, linear + 1));
    CHECK(attributes.kind == 2 && attributes.device == 0 && attributes.device_pointer == linear + 1 && !attributes.host_pointer);
    OK(cudaPointerGetAttributes(&attributes, host));
    CHECK(attributes.kind == 0 && attributes.device == -2 && attributes.host_pointer == host);
    OK(cudaMallocManaged((void **)&rows, 16, 1));
    OK(cudaPointerGetAttributes(&attributes, rows));
    CHECK(attributes.kind == 3 && attributes.device_pointer == rows && attributes.host_pointer == rows);

    void *none = host, *pooled;
    pool_t pool;
    unsigned long long used = 0;
    OK(cudaMalloc(&none, 0));
    CHECK(none == NULL);
    OK(cudaFree(NULL));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMallocAsync(&pooled, 4096, NULL));
    OK(cudaMemPoolGetAttribute(pool, 7, &used));
    CHECK(used == 4096);
    OK(cudaFreeAsync(pooled, NULL));
    size_t free_bytes, total;
    OK(cudaFree(linear));
    OK(cudaFreeHost(pinned));
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(total == 64 << 20 && free_bytes < total);
    CHECK(cudaGetLastError() == 12 && cudaGetLastError() == 0);
}

static void graphs(void) {
    float host[64], out[64], *x, *y;
    void *graph, *captured, *executable, *nodes[3];
    stream_t stream;
    size_t count = 3;
    for (int i = 0; i < 64; i++) host[i] = i;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc((void **)&x, sizeof host));
    OK(cudaMalloc((void **)&y, sizeof host));
    /* A capture: a copy, a launch, a copy. */
    OK(cudaStreamBeginCapture(stream, 0));
    OK(cudaMemcpyAsync(x, host, sizeof host, TO_DEVICE, stream));
    __cudaPushCallConfiguration((dim3_){1, 1, 1}, (dim3_){64, 1, 1}, 0, stream);
    saxpy(1, x, y, 64);
    int status = 0;
    unsigned long long id = 0;
    const void **before = NULL;
#if VERSION == 12
    OK(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &captured, &before, &count));
#else
    OK(cudaStreamGetCaptureInfo(stream, &status, &id, &captured, &before, NULL, &count));
#endif
    CHECK(status == 1 && id && count == 1 && before[0]);
    /* The array lasts until the next call. */
    const void *last = before[0];
    OK(cudaMemcpyAsync(out, y, sizeof out, TO_HOST, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    CHECK(graph == captured);
    count = 3;
    OK(cudaGraphGetNodes(graph, nodes, &count));
    CHECK(count == 3 && nodes[1] == last);
    kernel_node kernel;
    OK(cudaGraphKernelNodeGetParams(nodes[1], &kernel));
    CHECK(kernel.function == (void *)saxpy && kernel.block.x == 64 && *(float *)kernel.parameters[0] == 1);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaMemset(y, 0, sizeof host));
    for (int i = 1; i <= 3; i++) {
        host[1] = i;
        OK(cudaGraphLaunch(executable, stream));
        OK(cudaStreamSynchronize(stream));
        CHECK(out[2] == 2 * 2 * i);
    }
    CHECK(out[1] == 2 * (1 + 2 + 3));
    unsigned n = 64;
    float factor = 10, two = 2;
    void *changed[] = {&factor, &x, &y, &n};
    kernel.parameters = changed;
    OK(cudaGraphExecKernelNodeSetParams(executable, nodes[1], &kernel));
    OK(cudaGraphLaunch(executable, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(out[2] == 12 + 40);
    OK(cudaGraphExecDestroy(executable));
    /* Nodes by hand. */
    void *fill, *copy, *symbol, *launch;
    OK(cudaGraphCreate(&graph, 0));
    fill_node zero = {y, 0, 0, 4, 64, 1};
    OK(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &zero));
    OK(cudaGraphAddMemcpyNodeToSymbol(&symbol, graph, NULL, 0, scale, &two, 4, 0, TO_DEVICE));
    factor = 1;
    OK(cudaGraphAddKernelNode(&launch, graph, &fill, 1, &kernel));
    OK(cudaGraphAddDependencies(graph, &symbol, &launch, NO_EDGES 1));
    volumes rows = {{NULL, {0}, {y, sizeof host, 64, 1}}, {NULL, {0}, {out, sizeof host, 64, 1}}, {sizeof host, 1, 1}, TO_HOST}, read;
    OK(cudaGraphAddMemcpyNode(&copy, graph, &launch, 1, &rows));
    OK(cudaGraphMemcpyNodeGetParams(copy, &read));
    CHECK(read.from.pointer.pointer == y && read.to.pointer.pointer == out && read.kind == TO_HOST && read.size.width == sizeof host);
    struct { int type, reserved[3]; kernel_node kernel; char rest[256 - 16 - sizeof(kernel_node)]; } any = {0, {0}, kernel, {0}};
    OK(cudaGraphAddNode(&launch, graph, &copy, NO_EDGES 1, &any));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(out[2] == 4);
    OK(cudaMemcpy(out, y, sizeof out, TO_HOST));
    CHECK(out[2] == 8);
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    RETURNS(1, cudaGraphDestroy(graph));
    /* A capture does not forbid work in the default stream of the thread, only in the other one. */
    OK(cudaStreamBeginCapture(stream, 2));
    OK(cudaMemsetAsync_ptsz(x, 0, 4, NULL));
    RETURNS(906, cudaMemsetAsync(x, 0, 4, NULL));
    RETURNS(901, cudaStreamEndCapture(stream, &graph));
}

static void errors(void) {
    int count, device = 9, version = 0, status = 9;
    void *pointer;
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 1);
    RETURNS(101, cudaSetDevice(1));
    CHECK(cudaPeekAtLastError() == 101 && cudaGetLastError() == 101 && cudaGetLastError() == 0);
    OK(cudaGetDevice(&device));
    CHECK(device == 0);
    OK(cudaRuntimeGetVersion(&version));
    CHECK(version / 1000 == VERSION);
    OK(cudaDriverGetVersion(&version));
    CHECK(version == (VERSION == 12 ? 12080 : 13000));
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &pointer, 12000, 0, &status));
    CHECK(pointer && status == 0);
    OK(cudaGetDriverEntryPointByVersion("cuNothing", &pointer, 12000, 0, &status));
    CHECK(!pointer && status == 1);

    RETURNS(1, cudaMalloc(NULL, 4));
    RETURNS(2, cudaMalloc(&pointer, 1ull << 40));
    RETURNS(1, cudaFree((void *)0x1234500));
    RETURNS(21, cudaMemcpy(&count, &count, 4, 7));
    RETURNS(13, cudaMemcpyToSymbol(&count, &count, 4, 0, TO_DEVICE));
    RETURNS(1, cudaMemcpyToSymbol(counter, &count, 4, 5, TO_DEVICE));
    RETURNS(400, cudaStreamSynchronize((stream_t)0x77770));
    RETURNS(801, cudaGraphConditionalHandleCreate(&pointer, NULL, 0, 0));
    RETURNS(801, cudaGraphConditionalHandleCreate(&pointer, NULL, 0, 0));
    const dim3_ one = {1, 1, 1};
    RETURNS(52, __cudaPopCallConfiguration(NULL, NULL, NULL, NULL));
    RETURNS(98, cudaLaunchKernel(unregistered, one, one, NULL, 0, NULL));
    RETURNS(209, cudaLaunchKernel(machine_code, one, one, NULL, 0, NULL));
    OK(__cudaGetKernel(&pointer, machine_code));
    RETURNS(209, __cudaLaunchKernel(pointer, one, one, NULL, 0, NULL));
    RETURNS(98, __cudaGetKernel(&pointer, unregistered));
    RETURNS(9, cudaLaunchKernel(snap, one, (dim3_){1025, 1, 1}, NULL, 0, NULL));
    RETURNS(9, cudaLaunchKernel(snap, (dim3_){0, 1, 1}, one, NULL, 0, NULL));
    RETURNS(1, cudaLaunchKernel(snap, one, one, NULL, 1 << 30, NULL));
    CHECK(cudaGetLastError() == 1);
    OK(cudaDeviceSynchronize());

    /* What belongs to a managed variable is refused. */
    void **managed = __cudaRegisterFatBinary(&wrappers[0]), *shadow = NULL;
    __cudaRegisterFunction(managed, (const char *)uses_managed, (char *)uses_managed, "snap", -1, 0, 0, 0, 0, 0);
    __cudaRegisterManagedVar(managed, &shadow, "total", "total", 0, 4, 0, 0);
    __cudaRegisterFatBinaryEnd(managed);
    RETURNS(801, cudaLaunchKernel(uses_managed, one, one, NULL, 0, NULL));
    CHECK(cudaGetLastError() == 801);
    OK(cudaDeviceSynchronize());
    __cudaUnregisterFatBinary(managed);

    CHECK(strcmp(cudaGetErrorName(209), "cudaErrorNoKernelImageForDevice") == 0);
    CHECK(strcmp(cudaGetErrorString(2), "out of memory") == 0);
    CHECK(strcmp(cudaGetErrorName(12345), "unrecognized error code") == 0);

    /* A fault stays until the device is reset. Then everything works as before. */
    snap();
    RETURNS(719, cudaDeviceSynchronize());
    RETURNS(719, cudaMalloc(&pointer, 4));
    CHECK(cudaGetLastError() == 719 && cudaGetLastError() == 719);
    OK(cudaDeviceReset());
    CHECK(cudaGetLastError() == 0);
    launches();
}

static void at_exit(void) {
    launches();
    printf("done\n");
    fflush(stdout);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (strcmp(arguments[1], "exit") == 0) {
        /* Functions run in reverse order: this one before those that the libraries registered. */
        void *memory;
        OK(cudaMalloc(&memory, 4));
        CHECK(atexit(at_exit) == 0);
        return 0;
    }
    if (strcmp(arguments[1], "launches") == 0) launches();
    else if (strcmp(arguments[1], "memory") == 0) memory();
    else if (strcmp(arguments[1], "graphs") == 0) graphs();
    else if (strcmp(arguments[1], "errors") == 0) errors();
    else return 2;
    printf("done\n");
    return 0;
}
