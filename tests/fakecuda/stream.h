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
    uint32_t number; /* an index of clocks; never used again */
    bool with_null;  /* ordered with the null stream */
    std::deque<fake::operation> waiting;
    uint32_t queued, finished;
    fake::clock now; /* of what is queued so far */
    uint64_t priority;
};

struct CUevent_st {
    fake::point at;
    fake::clock now;
};

namespace fake
{

cudaStream_t stream_new(bool with_null);
void stream_end(cudaStream_t s);
cudaStream_t stream_of(cudaStream_t s); /* s, or the null stream for NULL */
bool stream_exists(cudaStream_t s);

void enqueue(cudaStream_t s, const char *name, std::function<void()> run);
/* An operation that waits for other processes: it runs in steps, and other streams between them.
 * run returns whether it is complete. */
void enqueue_steps(cudaStream_t s, const char *name, std::function<bool()> run);
void enqueue_wait(cudaStream_t s, const CUevent_st *e);
void record(CUevent_st *e, cudaStream_t s);

/* Run operations until the point is passed; the host then knows what came before it. */
void run_until(const point &p, const clock &known);
void run_all();
/* How many seconds the device waits for other processes until it reports that it waits for ever:
 * FAKECUDA_PATIENCE, or 120. */
double patience();
bool is_passed(const point &p);
int n_queued();
uint64_t n_operations();

/* The first failure of an operation; every later call of the API returns it. */
extern cudaError_t device_failure;
void fail_at(cudaError_t error, int after);

/* ---- api.cc ---- */

/* enqueue, for libraries on top of CUDA: as a call of the API, on a stream that must exist. */
void api_enqueue(cudaStream_t s, const char *name, std::function<void()> run);
void api_enqueue_steps(cudaStream_t s, const char *name, std::function<bool()> run);

} // namespace fake

#endif
