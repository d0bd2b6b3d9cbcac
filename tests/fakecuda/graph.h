/*
 * tests/fakecuda/graph.h - CUDA graphs: what is queued on streams that capture is recorded, and a
 * launch of the graph queues it. Each captured stream is a stream of the graph when it is launched,
 * so order, races and stalls are found as on streams.
 */
#ifndef TESTS_FAKECUDA_GRAPH_H
#define TESTS_FAKECUDA_GRAPH_H

#include <cuda_runtime_api.h>

#include "tests/fakecuda/stream.h"

enum graph_node_kind { GRAPH_OPERATION, GRAPH_RECORD, GRAPH_WAIT };

struct graph_node {
    graph_node_kind kind;
    const char *name;
    fake::operation_maker make; /* of an operation */
    uint32_t stream;            /* an index of the captured streams; 0: where the capture began */
    uint32_t event;             /* an index of the recorded events */
};

/* The type that CUDA's header names. While a capture records, and after it. */
struct CUgraph_st {
    uint64_t capture; /* its number; never used again */
    std::vector<cudaStream_t> streams;
    std::vector<fake::clock> clocks; /* of each stream: what of each stream came before */
    std::vector<fake::clock> events; /* the same of each event */
    std::vector<graph_node> nodes;
};

struct CUgraphExec_st {
    std::vector<graph_node> nodes;
    std::vector<cudaStream_t> streams; /* its own */
    size_t n_events;
};

namespace fake
{

/* Record what is queued on a stream that captures. */
void graph_add(cudaStream_t s, const char *name, operation_maker make);
void graph_record(cudaStream_t s, CUevent_st *e);
/* The event is of a capture, or the stream captures. */
void graph_wait(cudaStream_t s, const CUevent_st *e);

/* Report a call that is forbidden while the calling thread captures. */
void graph_forbids(const char *call);
/* Report a wait of the host for an event that was recorded in a capture. */
void graph_check_event(const char *call, const CUevent_st *e);

} // namespace fake

#endif
