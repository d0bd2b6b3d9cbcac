/*
 * device/cuda/cuda_graph.h - what a stream has captured, ready to be launched again. Functions
 * return CUDA's error, 0 for none.
 */
#ifndef DEVICE_CUDA_CUDA_GRAPH_H
#define DEVICE_CUDA_CUDA_GRAPH_H

struct CUstream_st;
struct device_graph;

/* Only the calls of this thread are restricted then: another one may write a checkpoint. */
int cuda_graph_begin(struct CUstream_st *s);

/* End the capture, also after a failure. *out: what it has recorded, freed with cuda_graph_close;
 * NULL after an error. */
int cuda_graph_end(struct device_graph **out, struct CUstream_st *s);

int cuda_graph_launch(struct device_graph *g, struct CUstream_st *s);
void cuda_graph_close(struct device_graph *g);

#endif
