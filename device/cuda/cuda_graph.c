/* device/cuda/cuda_graph.c - see device/cuda/cuda_graph.h. */
#include "device/cuda/cuda_graph.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct device_graph {
    cudaGraphExec_t exec;
};

int cuda_graph_begin(struct CUstream_st *s)
{
    return (int)cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
}

static cudaError_t make(struct device_graph **out, cudaGraph_t recorded)
{
    struct device_graph *g = calloc(1, sizeof *g);
    cudaError_t e = cudaErrorMemoryAllocation;

    if (g) /* without the flag, kernels of NCCL would lose the priority of their streams */
        e = cudaGraphInstantiate(&g->exec, recorded, cudaGraphInstantiateFlagUseNodePriority);
    if (e == cudaSuccess)
        *out = g;
    else
        free(g);
    return e;
}

int cuda_graph_end(struct device_graph **out, struct CUstream_st *s)
{
    cudaGraph_t recorded = NULL;
    cudaError_t e = cudaStreamEndCapture(s, &recorded);

    *out = NULL;
    if (e == cudaSuccess)
        e = make(out, recorded);
    if (recorded)
        (void)cudaGraphDestroy(recorded);
    return (int)e;
}

int cuda_graph_launch(struct device_graph *g, struct CUstream_st *s)
{
    return (int)cudaGraphLaunch(g->exec, s);
}

void cuda_graph_close(struct device_graph *g)
{
    (void)cudaGraphExecDestroy(g->exec);
    free(g);
}
