/*
 * tests/fakecuda/stream.h - streams and events. Nothing runs when it is queued: operations run when
 * the host waits, in a random order among those that streams and events allow.
 */
#ifndef TESTS_FAKECUDA_STREAM_H
#define TESTS_FAKECUDA_STREAM_H

#include <cuda_runtime_api.h>

#include <deque>
#include <string>

#include "tests/fakecuda/fake.h"

namespace fake
{

/* Makes what an operation runs; called once each time that it is queued. */
using operation_maker = std::function<std::function<bool()>(bool in_graph)>;

/* The point after operation `op` of a stream; 0: the beginning. */
struct point {
    cudaStream_t stream;
    uint32_t op;
};

struct operation {
    const char *name;
    std::function<bool()> run; /* false: call it again later; empty: it only waits */
    std::vector<point> after;  /* besides the operations before it in its stream */
    clock before;
    bool has_begun;
};

} // namespace fake

/* The types that CUDA's header names. */
struct CUstream_st {
    uint32_t number;     /* an index of clocks; never used again */
    bool with_null;      /* ordered with the null stream */
    bool of_graph;       /* of a graph that can be launched */
    cudaGraph_t capture; /* what records instead of the stream; or NULL */
    std::deque<fake::operation> waiting;
    uint32_t queued, finished;
    fake::clock now; /* of what is queued so far */
    uint64_t priority;
};

struct CUevent_st {
    fake::point at;
    fake::clock now;
    uint64_t capture; /* in which it was recorded (graph.h); 0: none */
    uint32_t node;    /* there */
};

namespace fake
{

cudaStream_t stream_new(bool with_null);
cudaStream_t stream_of_graph();
void stream_end(cudaStream_t s);
cudaStream_t stream_of(cudaStream_t s); /* s, or the null stream for NULL */
bool stream_exists(cudaStream_t s);

/* Device memory is open while it runs. */
void enqueue(cudaStream_t s, const char *name, std::function<void()> run);
/* An operation that waits for other processes: it runs in steps, and other streams between them.
 * What is made returns whether it is complete, and opens device memory itself where it uses it. */
void enqueue_made(cudaStream_t s, const char *name, const operation_maker &make);
void enqueue_wait(cudaStream_t s, const CUevent_st *e);
void record(CUevent_st *e, cudaStream_t s);

/* Run operations until the point is passed; the host then knows what came before it. */
void run_until(const point &p, const clock &known);
void run_all();
void run_by_chance(); /* perhaps all; a program cannot rely on it, so the host knows nothing of it
                       */
const clock &host_clock(); /* what the host knows to be complete */
/* A kernel is launched that may not have been loaded (load.cc). */
void load(const void *kernel);
void run_one(); /* if one can complete without waiting for other processes */
/* How many seconds the device waits for other processes until it reports that it hangs:
 * FAKECUDA_PATIENCE, or 120. */
double patience();
bool is_passed(const point &p);
int n_queued();
uint64_t n_operations(); /* a graph that is launched is two of them: its begin and its end */
void clock_join(clock *a, const clock &b);

/* The first failure of an operation; every later call of the API returns it. */
extern cudaError_t device_failure;
void fail_at(cudaError_t error, int after);

} // namespace fake

#endif
