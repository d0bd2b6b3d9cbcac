/*
 * tests/fakecuda/fake.h - what the files of the fake device share.
 */
#ifndef TESTS_FAKECUDA_FAKE_H
#define TESTS_FAKECUDA_FAKE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace fake
{

/* ---- report.cc ---- */

/* Print "fakecuda: ..." with the place in the kernel that runs, and end the process with status
 * MISTAKE. pc: the address after the access, or NULL. */
enum { MISTAKE = 86 };
[[noreturn]] void report(const void *pc, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "function at file.cu:12" of an address in the code, for messages. */
const char *symbol_of(const void *pc);

/* The name of a function for the linker. */
const char *linkage_name_of(const void *function);

/* Append a line to the file that an environment variable names, if it is set. */
void append_line(const char *variable, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

uint64_t random_below(uint64_t n); /* by the seed */
void seed(uint64_t seed);

/* ---- memory.cc ---- */

enum memory_kind { DEVICE_MEMORY, PINNED_MEMORY, MEMORY_KINDS };

/* Addresses that are given out once and never again, so a use after free is always found. */
struct arena {
    char *begin, *end, *top; /* top: where the next allocation goes */
};
extern arena arenas[MEMORY_KINDS];

void memory_begin();
void *memory_take(memory_kind kind, size_t n); /* NULL: no memory is left */
bool memory_give(memory_kind kind, void *p);   /* false: p is not an allocation of this kind */
/* Of device memory, after all accesses by operations that `before` has; others are reported. */
void memory_give_after(const char *call, void *p, const std::vector<uint32_t> &before);
/* What is known of an allocation: flags; NULL: p is none of this kind. */
enum { BY_STREAM = 1 /* of cudaMallocAsync */, IS_ENDING = 2 /* its free is queued */ };
unsigned *memory_flags(memory_kind kind, void *p);
int64_t memory_used(memory_kind kind);
int64_t memory_pinned_peak();

/* Whether [p, p + n) lies in one allocation of this kind. If not, *begin and *size are of the
 * allocation before p (NULL: none). */
bool memory_contains(memory_kind kind, const void *p, size_t n, const char **begin, size_t *size);
inline bool is_kind(memory_kind kind, const void *p)
{
    return (const char *)p >= arenas[kind].begin && (const char *)p < arenas[kind].end;
}

/* Let host code access device memory, or not. Calls nest. */
struct memory_open {
    memory_open();
    ~memory_open();
};

/* ---- stream.cc ---- */

/* A clock has for each stream the number of its operations that came before. */
using clock = std::vector<uint32_t>;

struct running {
    uint32_t stream, op; /* op counts from 1 in its stream; 0: nothing runs */
    const clock *before; /* the clock of the operation that runs */
    const char *name;
};
extern running now_running;

/* ---- block.cc: the grid that runs ---- */

struct place {
    bool in_kernel;
    const void *kernel;
    uint32_t block;
    uint16_t thread, barrier;    /* barrier: how many the block has passed */
    uint16_t warp_barrier[32];   /* the same for each warp, by __syncwarp */
    uint16_t proxy_fences[1024]; /* of each thread: how many fence.proxy.async it has passed */
    const char *args, *args_end;
};
extern place here;

/* Static shared memory of all kernels, and the dynamic one of the kernel that runs, which is a part
 * of it. */
char *shared_begin();
char *shared_end();
enum : size_t { SHARED_DEFAULT = 48 << 10, DYNAMIC_MAX = 227 << 10 };
char *dynamic_begin();
size_t dynamic_bytes();

extern char *stacks_begin, *stacks_end; /* of the threads of a block */
inline bool on_a_stack(const void *p)
{
    return (const char *)p >= stacks_begin && (const char *)p < stacks_end;
}

/* Wait until all 32 lanes of the warp have called this, each with `mine`; then `together` gets all
 * of them and runs once. */
void warp_together(const char *name, void (*together)(void *const *of_lane), void *mine,
                   const void *pc);

/* ---- watch.cc ---- */

void watch_begin();
void watch_block(); /* a block begins: its shared memory has any content */
void watch_new(memory_kind kind, const void *p, size_t n); /* allocated: nothing is written yet */
/* Device memory is freed after what `before` has: report an access that may come later. */
void watch_end(const char *call, const void *p, size_t n, const std::vector<uint32_t> &before);
void watch_copy(void *dst, const void *src, size_t n); /* before a copy */
void watch_fill(void *dst, size_t n);
void watch_read(const void *src, size_t n); /* device memory, by the operation that runs */
/* By the thread that runs. pc: the address after the access. */
void watch_access(const void *p, size_t n, bool is_write, bool is_atomic, const void *pc);

/* The thread that runs begins or ends an asynchronous write; between them nobody may use dst. */
enum async_end { NOT_ASYNC, ASYNC_BEGIN, ASYNC_END };
void watch_async(void *dst, size_t n, async_end end, const void *pc);

/* A read of shared memory by a product of a warpgroup. What threads have written to it must have
 * been followed by their fence.proxy.async. */
void watch_wgmma(const void *p, size_t n, const void *pc);

/* Memory of the program that a kernel uses: its stack, its arguments, built-in variables. */
bool is_private(const char *p);

/* ---- hooks.cc ---- */

void watch_load(const void *p, size_t n, const void *pc);    /* by the thread that runs */
void watch_product(const void *p, size_t n, const void *pc); /* the same by wgmma */
/* An access of the kernel's own code. */
void kernel_access(const void *p, size_t n, bool is_write, bool is_atomic, const void *pc);
/* Only count an access (traffic.h): of a function of the fake device that runs for a kernel. */
void count_access(const void *p, size_t n, bool is_write, const void *pc);
void copy_unwatched(void *dst, const void *src, size_t n);
void fill_unwatched(void *dst, int byte, size_t n);

/* ---- async_copy.cc ---- */

void async_copy_end_thread(); /* the thread that runs has ended */

/* ---- mma.cc ---- */

int64_t mma_products(); /* how many mma.sync have run */

/* ---- wgmma.cc ---- */

int64_t wgmma_products(); /* how many parts of warps of wgmma have run */
void wgmma_begin_block();
void wgmma_end_block();
void wgmma_end_thread(); /* the thread that runs has ended */

/* ---- cublaslt.cc ---- */

int64_t epilogue_products();              /* how many products with a bias have been queued */
void epilogue_missing(uint32_t epilogue); /* from now on there is no algorithm for it; 0: for all */

/* ---- cublas.cc ---- */

int64_t batched_calls();           /* how many batches of products have been queued */
void batched_missing(bool is_now); /* answer that they are not supported */

/* ---- cublas_grouped.cc ---- */

int64_t grouped_calls();           /* how many calls with groups of products have been queued */
void grouped_missing(bool is_now); /* answer that they are not supported */

} // namespace fake

#endif
