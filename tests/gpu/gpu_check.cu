/*
 * tests/gpu/gpu_check.cu - compares the CUDA kernels for copies and casts with the C kernels, bit
 * for bit; --quick: fewer cases, for compute-sanitizer. --bandwidth, --attention and --experts
 * measure. --versions: of the driver and the libraries, the number of GPUs, the name of the first.
 *
 * Exit code: 0 all equal, 1 a difference or a CUDA error, 3 no GPU.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <math.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "device/cuda/cuda.h"
#include "device/cuda/cuda_queue.h"
#include "kernels/cpu/vec.h"
#include "kernels/cuda/attention_run.cuh"
#include "kernels/cuda/run.h"
extern "C" {
#include "kernels/cpu/grouped_gemm_body.h"
#include "tests/unit/random.h"
}

#define CUDA_MUST(call)                                                            \
    do {                                                                           \
        cudaError_t e_ = (call);                                                   \
        if (e_ != cudaSuccess) {                                                   \
            fprintf(stderr, "gpu-check: %s: %s\n", #call, cudaGetErrorString(e_)); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

static struct device_queue *queue;
static struct device_event *event;

static void must(tp_status st, const struct tp_err *err)
{
    if (st != TP_OK) {
        fprintf(stderr, "gpu-check: %s\n", err->msg);
        exit(1);
    }
}

static void open_device(void)
{
    struct device *device;
    struct tp_err err = {};

    must(cuda_device_open(&device, 0, &err), &err);
    must(device_queue_open(device, &queue, DEVICE_QUEUE_COMPUTE, &err), &err);
    must(device_event_open(device, &event, &err), &err);
}

/* Wait for the queue. */
static void finish(void)
{
    struct tp_err err = {};

    device_record(queue, event);
    must(device_event_sync(event, &err), &err);
}

/* A buffer on the host and one of the same size on the device. */
struct arena_pair {
    std::vector<unsigned char> host;
    unsigned char *device;

    explicit arena_pair(size_t n) : host(n), device(nullptr)
    {
        CUDA_MUST(cudaMalloc(&device, n));
    }
    ~arena_pair()
    {
        cudaFree(device);
    }
    arena_pair(const arena_pair &) = delete;
    arena_pair &operator=(const arena_pair &) = delete;
    void to_device()
    {
        CUDA_MUST(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
        CUDA_MUST(cudaDeviceSynchronize()); /* the queue is not ordered with this copy */
    }
    /* Compare the first n bytes of device and host. Prints the first difference. */
    bool equal(size_t n, const char *what) const
    {
        std::vector<unsigned char> back(n);

        CUDA_MUST(cudaMemcpy(back.data(), device, n, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < n; i++)
            if (back[i] != host[i]) {
                printf("%s: byte %zu is %02x on the GPU and %02x in C\n", what, i, back[i],
                       host[i]);
                return false;
            }
        return true;
    }
};

struct copy_case {
    struct box region, dst_box, src_box;
    int elem;
    int64_t dst_at, src_at; /* offset of the box's storage in bytes */
};

static struct box around(struct rng *r, const struct box *region)
{
    struct box b = *region;

    for (int d = 0; d < b.ndim; d++) {
        int64_t before = rng_int(r, 0, 3) * rng_int(r, 0, 1);

        b.lo[d] -= before;
        b.len[d] += before + rng_int(r, 0, 3) * rng_int(r, 0, 1);
    }
    return b;
}

/* Mostly small boxes of up to five axes; some have rows of thousands of elements. */
static struct copy_case random_case(struct rng *r, int64_t dst_at)
{
    struct copy_case c = {};
    bool wide = rng_int(r, 0, 4) == 0;

    c.region.ndim = (int)rng_int(r, 0, wide ? 2 : 5);
    for (int d = 0; d < c.region.ndim; d++) {
        c.region.lo[d] = 10;
        c.region.len[d] = rng_int(r, rng_int(r, 0, 20) > 0, wide && d > 0 ? 20000 : 7);
    }
    c.dst_box = around(r, &c.region);
    c.src_box = around(r, &c.region);
    c.elem = 1 << rng_int(r, 0, 3);
    c.dst_at = (dst_at + 15) / 16 * 16 + c.elem * rng_int(r, 0, 16);
    c.src_at = c.elem * rng_int(r, 0, 16);
    return c;
}

/* n random copies, one by one or as one table. They must not change the bytes around them. */
static bool check_copies(struct rng *r, int n, bool as_table)
{
    const size_t src_bytes = 8 << 20;
    std::vector<copy_case> cases;
    std::vector<copy_item> items((size_t)n);
    int64_t end = 0;

    for (int i = 0; i < n; i++) {
        cases.push_back(random_case(r, end));
        end = cases.back().dst_at + box_elements(&cases.back().dst_box) * cases.back().elem;
    }
    arena_pair src(src_bytes), dst((size_t)end + 64), table((size_t)n * sizeof(copy_item));
    for (size_t i = 0; i < src_bytes; i++)
        src.host[i] = (unsigned char)rng_next(r);
    memset(dst.host.data(), 0xee, dst.host.size());
    src.to_device();
    dst.to_device();
    for (int i = 0; i < n; i++) {
        const copy_case *c = &cases[(size_t)i];
        copy_box(dst.host.data() + c->dst_at, &c->dst_box, src.host.data() + c->src_at, &c->src_box,
                 &c->region, c->elem);
        const struct copy_box one = { dst.device + c->dst_at,
                                      src.device + c->src_at,
                                      c->dst_box,
                                      c->src_box,
                                      c->region,
                                      c->elem };
        copy_item_make(&items[(size_t)i], &one, DTYPE_U8, DTYPE_U8);
        if (!as_table)
            cuda_run_copy_box(queue, &one);
    }
    if (as_table) {
        int64_t warps = copy_items_place(items.data(), n);
        memcpy(table.host.data(), items.data(), table.host.size());
        table.to_device();
        const struct copy_table all = { reinterpret_cast<copy_item *>(table.device), n, warps };
        cuda_run_copy_table(queue, &all);
    }
    finish();
    return dst.equal(dst.host.size(), as_table ? "table of copies" : "copies");
}

/* All patterns of 16 bits and random patterns of 32 and 64 bits, at any alignment. */
static bool check_cast(struct rng *r, enum dtype to, enum dtype from, int64_t n)
{
    int64_t src_at = rng_int(r, 0, 1) * rng_int(r, 0, 15) * dtype_bytes(from);
    int64_t dst_at = rng_int(r, 0, 1) * rng_int(r, 0, 15) * dtype_bytes(to);
    arena_pair src((size_t)(n + 16) * 8), dst((size_t)(n + 16) * 8);
    const struct cast on_device = { dst.device + dst_at, to, src.device + src_at, from, n };
    char what[64];

    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = rng_next(r);
        double near_f16 = ldexp(rng_real(r), (int)rng_int(r, -30, 20));
        float near_f32 = (float)near_f16;
        unsigned char *at = src.host.data() + src_at + i * dtype_bytes(from);
        const void *value = i & 1               ? (const void *)&bits
                            : from == DTYPE_F32 ? (const void *)&near_f32
                                                : (const void *)&near_f16;
        if (dtype_bytes(from) == 2) {
            uint16_t pattern = (uint16_t)i;
            memcpy(at, &pattern, 2);
        } else {
            memcpy(at, value, (size_t)dtype_bytes(from));
        }
    }
    memset(dst.host.data(), 0xee, dst.host.size());
    src.to_device();
    dst.to_device();
    cast(dst.host.data() + dst_at, to, src.host.data() + src_at, from, n);
    cuda_run_cast(queue, &on_device);
    finish();
    snprintf(what, sizeof what, "%s to %s", dtype_name(from), dtype_name(to));
    return dst.equal(dst.host.size(), what);
}

static bool check_all(bool quick)
{
    const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
    struct rng r = rng_start("gpu-check");
    int rounds = quick ? 2 : 40;
    bool ok = true;

    for (int i = 0; i < rounds && ok; i++)
        ok = check_copies(&r, 200, false) && check_copies(&r, 500, true);
    printf("copies: %d random boxes %s\n", rounds * 700, ok ? "equal" : "DIFFER");
    for (int to = 0; to < 4; to++)
        for (int from = 0; from < 4; from++)
            for (int i = 0; i < (quick ? 1 : 4); i++)
                ok = check_cast(&r, types[to], types[from], 65536 + i) && ok;
    printf("casts: 16 pairs of types %s\n", ok ? "equal" : "DIFFER");
    return ok;
}

/* Milliseconds of the fastest of several calls. */
template <typename F> static double best_ms(F work)
{
    cudaEvent_t begin, end;
    double best = 1e9;

    CUDA_MUST(cudaEventCreate(&begin));
    CUDA_MUST(cudaEventCreate(&end));
    for (int i = 0; i < 20; i++) {
        float ms = 0;
        CUDA_MUST(cudaEventRecord(begin, cuda_queue_stream(queue)));
        work();
        CUDA_MUST(cudaEventRecord(end, cuda_queue_stream(queue)));
        CUDA_MUST(cudaEventSynchronize(end));
        CUDA_MUST(cudaEventElapsedTime(&ms, begin, end));
        best = (double)ms < best ? (double)ms : best;
    }
    CUDA_MUST(cudaEventDestroy(begin));
    CUDA_MUST(cudaEventDestroy(end));
    return best;
}

/* Split off `cols` bytes, from `offset` on, of rows of `pitch` bytes; or gather them into such
 * rows. Compare with cudaMemcpy2DAsync. Returns the better of both, in GB/s. */
static double bandwidth_of(const char *what, unsigned char *dst, unsigned char *src, int64_t total,
                           int64_t cols, int64_t pitch, int64_t offset, bool gather = false)
{
    int64_t rows = total / pitch;
    struct box whole = {}, part;
    struct copy_box copy = { dst, src, {}, {}, {}, 2 };
    unsigned char *to = gather ? dst + offset : dst, *from = gather ? src : src + offset;
    const int64_t to_pitch = gather ? pitch : cols, from_pitch = gather ? cols : pitch;
    double bytes = 2.0 * (double)rows * (double)cols, own, theirs;

    whole.ndim = 2;
    whole.len[0] = rows;
    whole.len[1] = pitch / 2;
    part = whole;
    part.lo[1] = offset / 2;
    part.len[1] = cols / 2;
    copy.src_box = gather ? part : whole;
    copy.dst_box = gather ? whole : part;
    copy.region = part;
    own = best_ms([&] { cuda_run_copy_box(queue, &copy); });
    theirs = best_ms([&] {
        CUDA_MUST(cudaMemcpy2DAsync(to, (size_t)to_pitch, from, (size_t)from_pitch, (size_t)cols,
                                    (size_t)rows, cudaMemcpyDeviceToDevice,
                                    cuda_queue_stream(queue)));
    });
    printf("%-40s %8.0f GB/s   cudaMemcpy2DAsync %8.0f GB/s\n", what, bytes / own * 1e-6,
           bytes / theirs * 1e-6);
    return bytes / (own < theirs ? own : theirs) * 1e-6;
}

static void bandwidth(void)
{
    const int64_t total = 1ll << 30;
    unsigned char *src = nullptr, *dst = nullptr;
    double ms, card;

    CUDA_MUST(cudaMalloc(&src, (size_t)total));
    CUDA_MUST(cudaMalloc(&dst, (size_t)total));
    CUDA_MUST(cudaMemset(src, 1, (size_t)total));
    CUDA_MUST(cudaDeviceSynchronize());
    printf("bandwidth, read and written, 1 GiB of source:\n");
    card = bandwidth_of("contiguous", dst, src, total, 8192, 8192, 0);
    ms = best_ms([&] {
        CUDA_MUST(cudaMemcpyAsync(dst, src, (size_t)total, cudaMemcpyDeviceToDevice,
                                  cuda_queue_stream(queue)));
    });
    printf("%-40s %8.0f GB/s\n", "cudaMemcpyAsync", (double)total * 2 / ms * 1e-6);
    /* Whatever copies contiguous bytes best shows what the card can do. */
    printf("%-40s %8.0f GB/s\n", "best contiguous copy", fmax(card, (double)total * 2 / ms * 1e-6));
    bandwidth_of("half of rows of 8 KiB", dst, src, total, 4096, 8192, 0);
    bandwidth_of("half of rows of 1 KiB", dst, src, total, 512, 1024, 512);
    bandwidth_of("gathered into half of rows of 8 KiB", dst, src, total, 4096, 8192, 0, true);
    bandwidth_of("gathered into half of rows of 1 KiB", dst, src, total, 512, 1024, 512, true);
    bandwidth_of("a quarter of rows of 256 B", dst, src, total, 64, 256, 64);
    bandwidth_of("1000 B of rows of 2 KiB, aligned to 8", dst, src, total, 1000, 2048, 8);
    bandwidth_of("998 B of rows of 2 KiB, aligned to 2", dst, src, total, 998, 2048, 2);
    const struct cast narrow = { dst, DTYPE_BF16, src, DTYPE_F32, total / 4 };
    ms = best_ms([&] { cuda_run_cast(queue, &narrow); });
    printf("%-40s %8.0f GB/s\n", "cast f32 to bf16", (double)total * 1.5 / ms * 1e-6);
    CUDA_MUST(cudaFree(src));
    CUDA_MUST(cudaFree(dst));
}

/* A table of so many copies: rows of `cols` f32 of rows of twice as many, to another type or the
 * same. */
static void table_bandwidth(int n_items, int64_t cols, enum dtype to)
{
    const int64_t total = 1ll << 29, rows = total / 4 / (2 * cols) / n_items;
    unsigned char *src = nullptr, *dst = nullptr, *table = nullptr;
    std::vector<copy_item> items((size_t)n_items);
    const size_t table_bytes = items.size() * sizeof(copy_item);
    char what[64];
    double ms;

    CUDA_MUST(cudaMalloc(&src, (size_t)total));
    CUDA_MUST(cudaMalloc(&dst, (size_t)total));
    CUDA_MUST(cudaMalloc(&table, table_bytes));
    CUDA_MUST(cudaMemset(src, 1, (size_t)total));
    for (int i = 0; i < n_items; i++) {
        struct copy_box c = {};

        c.dst = dst + i * rows * cols * dtype_bytes(to);
        c.src = src + i * rows * cols * 8;
        c.src_box.ndim = 2;
        c.src_box.len[0] = rows;
        c.src_box.len[1] = 2 * cols;
        c.region = c.src_box;
        c.region.len[1] = cols;
        c.dst_box = c.region;
        c.elem_bytes = 4;
        copy_item_make(&items[(size_t)i], &c, to, DTYPE_F32);
    }
    const struct copy_table all = { reinterpret_cast<copy_item *>(table), n_items,
                                    copy_items_place(items.data(), n_items) };
    CUDA_MUST(cudaMemcpy(table, items.data(), table_bytes, cudaMemcpyHostToDevice));
    CUDA_MUST(cudaDeviceSynchronize());
    ms = best_ms([&] { cuda_run_copy_table(queue, &all); });
    snprintf(what, sizeof what, "table of %d: rows of %lld f32 to %s", n_items, (long long)cols,
             dtype_name(to));
    printf("%-40s %8.0f GB/s\n", what,
           (double)(n_items * rows * cols) * (double)(4 + dtype_bytes(to)) / ms * 1e-6);
    CUDA_MUST(cudaFree(src));
    CUDA_MUST(cudaFree(dst));
    CUDA_MUST(cudaFree(table));
}

/* Zeroed device memory of n elements. */
template <typename T> static T *zeros(int64_t n)
{
    void *p = nullptr;

    CUDA_MUST(cudaMalloc(&p, (size_t)n * sizeof(T)));
    CUDA_MUST(cudaMemset(p, 0, (size_t)n * sizeof(T)));
    return static_cast<T *>(p);
}

/* n random bf16, of about the size of a query's elements. A GPU needs less power for zeros, and is
 * faster. */
static uint16_t *random_bf16(struct rng *r, int64_t n)
{
    const int64_t n_once = 1 << 20;
    std::vector<uint16_t> some((size_t)n_once);
    uint16_t *p = zeros<uint16_t>(n);

    for (uint16_t &x : some)
        x = vec_to_bf16((float)(4 * rng_real(r) - 2));
    for (int64_t at = 0; at < n; at += n_once)
        CUDA_MUST(cudaMemcpy(p + at, some.data(), (size_t)(n - at < n_once ? n - at : n_once) * 2,
                             cudaMemcpyHostToDevice));
    return p;
}

/* Causal attention in bf16, 16 heads. Half of the scores count. */
static void attention_speed(int64_t seq, int64_t head_dim)
{
    const int64_t heads = 16, batch = 16384 / seq, width = heads * head_dim;
    const int64_t n = batch * seq * width;
    struct attention a = {};
    struct attention_backward b = {};
    double flops = 2.0 * (double)(batch * heads * seq * seq * head_dim), forward, backward;
    struct rng r = rng_start("attention");
    void *owned[9];

    a.batch = batch;
    a.seq = seq;
    a.heads = a.kv_heads = heads;
    a.head_dim = head_dim;
    a.type = DTYPE_BF16;
    a.q = owned[0] = random_bf16(&r, n);
    a.k = owned[1] = random_bf16(&r, n);
    a.v = owned[2] = random_bf16(&r, n);
    a.ldq = a.ldk = a.ldv = a.ldo = width;
    a.out = owned[3] = zeros<uint16_t>(n);
    a.lse = static_cast<float *>(owned[4] = zeros<float>(batch * heads * seq));
    a.scale = 1.0f / sqrtf((float)head_dim);
    b.of = a;
    b.d_out = owned[8] = random_bf16(&r, n);
    b.dq = owned[5] = zeros<uint16_t>(n);
    b.dk = owned[6] = zeros<uint16_t>(n);
    b.dv = owned[7] = zeros<uint16_t>(n);
    b.type = a.type;
    b.lddq = b.lddk = b.lddv = width;
    CUDA_MUST(cudaDeviceSynchronize());
    forward = best_ms([&] { cuda_run_attention_forward(queue, &a); });
    backward = best_ms([&] { cuda_run_attention_backward(queue, &b); });
    printf("attention seq %lld head_dim %lld forward %.1f backward %.1f TFLOP/s (%s)\n",
           (long long)seq, (long long)head_dim, flops / forward * 1e-9,
           2.5 * flops / backward * 1e-9, attention_wgmma_fits(queue, &a) ? "wgmma" : "mma.sync");
    for (void *p : owned)
        CUDA_MUST(cudaFree(p));
}

/* The gate of 128 experts in bf16, of the sizes of Qwen3-30B-A3B: as one call of cuBLAS, and as one
 * call for each expert, with the time that the host needs for the calls. */
static void experts_speed(int64_t rows_each)
{
    const int experts = 128;
    const int64_t hidden = 2048, ffn = 768, rows = experts * rows_each;
    const double flops = 2.0 * (double)(rows * hidden * ffn);
    struct rng r = rng_start("experts");
    struct grouped_gemm all = {};
    std::vector<int32_t> offsets;
    uint16_t *x = random_bf16(&r, rows * hidden), *w = random_bf16(&r, experts * hidden * ffn);
    uint16_t *y = zeros<uint16_t>(rows * ffn);
    double together, apart;

    for (int i = 0; i <= experts; i++)
        offsets.push_back((int32_t)(i * rows_each));
    all.product.trans_b = true;
    all.product.n = ffn;
    all.product.k = all.product.lda = all.product.ldb = hidden;
    all.product.a = x;
    all.product.b = w;
    all.product.c = y;
    all.product.ldc = ffn;
    all.product.alpha = 1;
    all.product.type = all.product.c_type = DTYPE_BF16;
    all.axis = GEMM_M;
    all.groups = experts;
    all.step = hidden * ffn;
    all.host_offsets = offsets.data();
    CUDA_MUST(cudaDeviceSynchronize());
    together = best_ms([&] { cuda_run_grouped_gemm(queue, &all); });
    apart = best_ms([&] {
        for (int i = 0; i < experts; i++) {
            const struct gemm one = grouped_gemm_product(&all, all.host_offsets, i);
            cuda_run_gemm(queue, &one);
        }
    });
    printf("experts %d rows %lld together %.1f apart %.1f TFLOP/s\n", experts, (long long)rows_each,
           flops / together * 1e-9, flops / apart * 1e-9);
    for (void *p : { x, w, y })
        CUDA_MUST(cudaFree(p));
}

/* Also where there is no GPU. */
static int versions(void)
{
    int driver = 0, runtime = 0, nccl = 0, major = 0, minor = 0, patch = 0, n_devices = 0;
    cudaDeviceProp first;

    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)ncclGetVersion(&nccl);
    (void)cublasGetProperty(MAJOR_VERSION, &major);
    (void)cublasGetProperty(MINOR_VERSION, &minor);
    (void)cublasGetProperty(PATCH_LEVEL, &patch);
    (void)cudaGetDeviceCount(&n_devices);
    printf("CUDA of the driver: %d.%d\nCUDA: %d.%d\ncuBLAS: %d.%d.%d\nNCCL: %d.%d.%d\nGPUs: %d\n",
           driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, major, minor,
           patch, nccl / 10000, nccl / 100 % 100, nccl % 100, n_devices);
    if (n_devices > 0 && cudaGetDeviceProperties(&first, 0) == cudaSuccess)
        printf("GPU 0: %s\n", first.name);
    return 0;
}

/* What to do: all comparisons by default; --quick: fewer; --bandwidth, --attention, --experts: only
 * measure. */
int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    bool quick = strcmp(mode, "--quick") == 0;
    cudaDeviceProp device;
    int n_devices = 0;
    cudaError_t e = cudaGetDeviceCount(&n_devices);

    if (strcmp(mode, "--versions") == 0)
        return versions();
    if (e != cudaSuccess || n_devices == 0) {
        printf("gpu-check: this machine has no usable GPU (%s), so nothing was checked.\n",
               e == cudaSuccess ? "no device" : cudaGetErrorString(e));
        return 3;
    }
    CUDA_MUST(cudaGetDeviceProperties(&device, 0));
    open_device();
    printf("gpu-check on %s, %d processors\n", device.name, device.multiProcessorCount);
    if (strcmp(mode, "--bandwidth") == 0) {
        bandwidth();
        for (int n_items : { 1, 256 })
            for (enum dtype to : { DTYPE_BF16, DTYPE_F32 })
                for (int64_t cols : { 64, 128, 250, 1024, 8192 })
                    table_bandwidth(n_items, cols, to);
    } else if (strcmp(mode, "--attention") == 0) {
        for (int64_t seq : { 1024, 4096 })
            for (int64_t head_dim : { 64, 128 })
                attention_speed(seq, head_dim);
    } else if (strcmp(mode, "--experts") == 0) {
        for (int64_t rows_each : { 32, 256, 2048 })
            experts_speed(rows_each);
    } else if (!check_all(quick)) {
        return 1;
    }
    finish();
    return 0;
}
