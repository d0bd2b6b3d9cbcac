/*
 * tests/fakecuda/graph.cc - see tests/fakecuda/graph.h. What CUDA forbids during a capture is
 * reported where it is called; NVIDIA's driver returns an error and makes the capture invalid.
 */
#include "tests/fakecuda/graph.h"
#include "tests/fakecuda/api.h"
#include "tests/fakecuda/handle.h"

#include <algorithm>
#include <cstdlib>

static_assert(cudaStreamCaptureModeGlobal == 0 && cudaStreamCaptureModeThreadLocal == 1 &&
                  cudaErrorStreamCaptureInvalidated == 901,
              "the numbers are NVIDIA's");

namespace fake
{

static thread_local CUgraph_st *of_thread;                    /* that this thread records */
static auto &launchable = *new std::vector<CUgraphExec_st *>; /* that exist */

/* ---- recording ---- */

static uint32_t index_of(const CUgraph_st *g, cudaStream_t s)
{
    return (uint32_t)(std::find(g->streams.begin(), g->streams.end(), s) - g->streams.begin());
}

static void include(CUgraph_st *g, cudaStream_t s)
{
    s->capture = g;
    if (index_of(g, s) == g->streams.size()) {
        g->streams.push_back(s);
        g->clocks.emplace_back();
    }
}

void graph_add(cudaStream_t s, const char *name, operation_maker make)
{
    CUgraph_st *g = s->capture;
    uint32_t i = index_of(g, s);
    clock &now = g->clocks[i];

    now.resize(std::max(now.size(), (size_t)i + 1));
    now[i]++;
    g->nodes.push_back({ GRAPH_OPERATION, name, std::move(make), i, 0 });
}

void graph_record(cudaStream_t s, CUevent_st *e)
{
    CUgraph_st *g = s->capture;
    uint32_t i = index_of(g, s);

    e->capture = g->capture;
    e->node = (uint32_t)g->events.size();
    g->events.push_back(g->clocks[i]);
    g->nodes.push_back({ GRAPH_RECORD, "event", nullptr, i, e->node });
}

void graph_wait(cudaStream_t s, const CUevent_st *e)
{
    if (s->capture && e->capture != s->capture->capture)
        report(nullptr, "a stream that captures waits for an event that was recorded outside of "
                        "the capture");
    if (!of_thread || e->capture != of_thread->capture)
        report(nullptr, "a stream waits for an event of a capture that has ended");
    include(of_thread, s);
    clock_join(&s->capture->clocks[index_of(s->capture, s)], s->capture->events[e->node]);
    s->capture->nodes.push_back({ GRAPH_WAIT, "wait", nullptr, index_of(s->capture, s), e->node });
}

void graph_forbids(const char *call)
{
    if (of_thread)
        report(nullptr, "%s during a capture", call);
}

void graph_check_event(const char *call, const CUevent_st *e)
{
    if (e->capture)
        report(nullptr, "%s: the event was recorded in a capture", call);
}

static void begin_capture(cudaStream_t s)
{
    static uint64_t n_captures;

    if (!s)
        report(nullptr, "cudaStreamBeginCapture: the null stream cannot capture");
    if (s->capture || of_thread)
        report(nullptr, "cudaStreamBeginCapture during a capture");
    of_thread = new CUgraph_st();
    of_thread->capture = ++n_captures;
    include(of_thread, s);
}

/* What every stream has recorded comes before the end of the first one. */
static void check_joined(const CUgraph_st *g)
{
    clock end = g->clocks[0];

    end.resize(g->streams.size());
    for (size_t i = 0; i < g->streams.size(); i++)
        if (g->clocks[i].size() > i && end[i] < g->clocks[i][i])
            report(nullptr,
                   "the capture ends, and stream %u has not joined the stream where it "
                   "began",
                   g->streams[i]->number);
}

static CUgraph_st *end_capture(cudaStream_t s)
{
    CUgraph_st *g = of_thread;

    if (!s || !g || s->capture != g)
        report(nullptr, "cudaStreamEndCapture: the stream does not capture");
    if (s != g->streams[0])
        report(nullptr, "cudaStreamEndCapture: the capture began on another stream");
    check_joined(g);
    for (cudaStream_t x : g->streams)
        x->capture = nullptr;
    of_thread = nullptr;
    return g;
}

/* ---- launching ---- */

/* A small part of what a node takes of the device's memory. */
static const size_t NODE = 256;

static CUgraphExec_st *instantiate(const CUgraph_st *g)
{
    auto *x = new CUgraphExec_st{ g->nodes, {}, g->events.size() };

    for (size_t i = 0; i < g->streams.size(); i++)
        x->streams.push_back(stream_of_graph());
    launchable.push_back(x);
    return x;
}

static void check_launchable(const char *call, CUgraphExec_st *x)
{
    if (std::find(launchable.begin(), launchable.end(), x) == launchable.end())
        report(nullptr, "%s: the graph was destroyed", call);
}

/* The graph begins after what stream s has, and s goes on after the graph. */
static void launch(CUgraphExec_st *x, cudaStream_t s)
{
    std::vector<CUevent_st> events(x->n_events + 1);
    CUevent_st *end = &events.back();

    record(end, s);
    for (cudaStream_t own : x->streams)
        enqueue_wait(own, end);
    for (const graph_node &n : x->nodes) {
        if (n.kind == GRAPH_RECORD)
            record(&events[n.event], x->streams[n.stream]);
        else if (n.kind == GRAPH_WAIT)
            enqueue_wait(x->streams[n.stream], &events[n.event]);
        else
            enqueue_made(x->streams[n.stream], n.name, n.make);
    }
    record(end, x->streams[0]);
    enqueue_wait(s, end);
}

static void destroy(CUgraphExec_st *x)
{
    for (cudaStream_t s : x->streams) {
        run_until({ s, s->queued }, s->now);
        stream_end(s);
    }
    launchable.erase(std::find(launchable.begin(), launchable.end(), x));
    delete x;
}

} // namespace fake

/* ---- the functions of CUDA ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return fake::api_run("cudaStreamBeginCapture", stream, [=] {
        if (mode != cudaStreamCaptureModeThreadLocal)
            fake::report(nullptr, "cudaStreamBeginCapture: the fake device captures in the mode of "
                                  "one thread only");
        fake::begin_capture(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    return fake::api_run("cudaStreamIsCapturing", stream, [=] {
        *status =
            stream && stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
        return cudaSuccess;
    });
}

/* FAKECUDA_NO_CAPTURE: as a driver that finds something in the capture that it does not allow. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return fake::api_run("cudaStreamEndCapture", stream, [=] {
        *graph = fake::end_capture(stream);
        if (!getenv("FAKECUDA_NO_CAPTURE"))
            return cudaSuccess;
        delete *graph;
        *graph = nullptr;
        fake::handles_may_stay();
        return cudaErrorStreamCaptureInvalidated;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    return fake::api_run("cudaGraphInstantiate", nullptr, [=] {
        fake::graph_forbids("cudaGraphInstantiate");
        if (graph->nodes.size() * fake::NODE > fake::api_memory_left())
            return cudaErrorMemoryAllocation;
        *exec = fake::instantiate(graph);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    return fake::api_run("cudaGraphLaunch", stream, [=] {
        fake::graph_forbids("cudaGraphLaunch");
        fake::check_launchable("cudaGraphLaunch", exec);
        fake::launch(exec, stream);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return fake::api_run("cudaGraphExecDestroy", nullptr, [=] {
        fake::check_launchable("cudaGraphExecDestroy", exec);
        fake::destroy(exec);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
