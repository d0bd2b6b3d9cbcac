/* tests/fakecuda/stream.cc - see tests/fakecuda/stream.h. */
#include "tests/fakecuda/stream.h"

#include <algorithm>
#include <cstdlib>
#include <time.h>
#include <unistd.h>

#include "tests/fakecuda/graph.h"
#include "tests/fakecuda/handle.h"

namespace fake
{

running now_running;
cudaError_t device_failure = cudaSuccess;

static std::vector<cudaStream_t> streams; /* those that exist */
static cudaStream_t null_stream;          /* the first of them */
static uint32_t n_streams;                /* that ever existed */
static clock host;                        /* what the host has waited for */
static cudaError_t planned_failure;
static int planned_after;

/* ---- clocks ---- */

void clock_join(clock *a, const clock &b)
{
    if (a->size() < b.size())
        a->resize(b.size());
    for (size_t i = 0; i < b.size(); i++)
        (*a)[i] = std::max((*a)[i], b[i]);
}

/* ---- streams ---- */

static cudaStream_t add_stream(bool with_null)
{
    auto *s = new CUstream_st();

    s->number = n_streams++;
    s->with_null = with_null;
    streams.push_back(s);
    handle_created(s);
    return s;
}

cudaStream_t stream_of(cudaStream_t s)
{
    if (!s)
        graph_forbids("a use of the null stream");
    if (!null_stream)
        null_stream = add_stream(true);
    return s ? s : null_stream;
}

cudaStream_t stream_new(bool with_null)
{
    if (!null_stream)
        null_stream = add_stream(true);
    return add_stream(with_null);
}

cudaStream_t stream_of_graph()
{
    cudaStream_t s = stream_new(false);

    s->of_graph = true;
    return s;
}

bool stream_exists(cudaStream_t s)
{
    return s == nullptr || std::find(streams.begin(), streams.end(), s) != streams.end();
}

/* Its structure stays, because events may name it. */
void stream_end(cudaStream_t s)
{
    static auto &ended = *new std::vector<cudaStream_t>; /* so that no leak is reported */

    handle_destroyed(s);
    streams.erase(std::find(streams.begin(), streams.end(), s));
    ended.push_back(s);
}

int n_queued()
{
    int n = 0;

    for (cudaStream_t s : streams)
        n += (int)s->waiting.size();
    return n;
}

uint64_t n_operations()
{
    uint64_t n = 0;

    for (cudaStream_t s : streams)
        n += s->of_graph ? 0 : s->queued;
    return n;
}

/* ---- queuing ---- */

enum waiting { GO_ON, WAIT }; /* when only operations are left that wait for other processes */
static bool step(waiting w);

/* A line of the file FAKECUDA_OPERATIONS: process, stream, number in the stream, what precedes it,
 * name. Operations of which neither precedes the other may run at the same time. */
static void write_line(const CUstream_st *s, const operation &o)
{
    std::string before;

    if (!getenv("FAKECUDA_OPERATIONS"))
        return;
    for (uint32_t op : o.before)
        before += (before.empty() ? "" : ",") + std::to_string(op);
    append_line("FAKECUDA_OPERATIONS", "%d %u %u %s %s\n", (int)getpid(), s->number, s->queued,
                before.c_str(), o.name);
}

static void add(cudaStream_t s, operation o)
{
    clock_join(&s->now, host);
    s->queued++;
    if (s->now.size() <= s->number)
        s->now.resize(s->number + 1);
    s->now[s->number] = s->queued;
    o.before = s->now;
    if (o.run)
        write_line(s, o);
    s->waiting.push_back(std::move(o));
}

/* The null stream waits for the streams that are ordered with it, and they wait for it. */
static std::vector<point> with_null_stream(cudaStream_t s)
{
    std::vector<point> after;

    if (!s->with_null)
        return after;
    for (cudaStream_t t : streams)
        if (t != s && t->with_null && (s == null_stream || t == null_stream)) {
            after.push_back({ t, t->queued });
            clock_join(&s->now, t->now);
        }
    return after;
}

/* Sometimes the device is fast, and something runs before the host waits. */
void enqueue_made(cudaStream_t stream, const char *name, const operation_maker &make)
{
    cudaStream_t s = stream_of(stream);

    if (s->capture) {
        graph_add(s, name, make);
        return;
    }
    add(s, { name, make(s->of_graph), with_null_stream(s), {}, false });
    if (random_below(16) == 0)
        step(GO_ON);
}

void enqueue(cudaStream_t stream, const char *name, std::function<void()> run)
{
    enqueue_made(stream, name, [run = std::move(run)](bool) {
        return [run] {
            memory_open open;
            run();
            return true;
        };
    });
}

void enqueue_wait(cudaStream_t stream, const CUevent_st *e)
{
    cudaStream_t s = stream_of(stream);

    if (s->capture || e->capture) {
        graph_wait(s, e);
        return;
    }
    if (!e->at.stream) /* never recorded */
        return;
    clock_join(&s->now, e->now);
    add(s, { "wait", nullptr, { e->at }, {}, false });
}

void record(CUevent_st *e, cudaStream_t stream)
{
    cudaStream_t s = stream_of(stream);

    if (s->capture) {
        graph_record(s, e);
        return;
    }
    e->capture = 0;
    add(s, { "event", nullptr, with_null_stream(s), {}, false });
    e->at = { s, s->queued };
    e->now = s->now;
}

/* ---- running ---- */

bool is_passed(const point &p)
{
    return !p.stream || p.stream->finished >= p.op;
}

static bool can_run(cudaStream_t s)
{
    if (s->waiting.empty())
        return false;
    for (const point &p : s->waiting.front().after)
        if (!is_passed(p))
            return false;
    return true;
}

void fail_at(cudaError_t error, int after)
{
    planned_failure = error;
    planned_after = after;
}

/* Whether the operation shall run: not after a failure, and not if it is to fail itself. */
static bool may_run()
{
    if (device_failure != cudaSuccess)
        return false;
    if (planned_failure == cudaSuccess || planned_after-- > 0)
        return true;
    device_failure = planned_failure;
    handles_may_stay();
    planned_failure = cudaSuccess;
    return false;
}

/* False: the operation waits for other processes, and is still the first. */
static bool run_first(cudaStream_t s)
{
    operation &o = s->waiting.front();
    bool is_complete = true;

    if (o.run && (o.has_begun ? device_failure == cudaSuccess : may_run())) {
        o.has_begun = true;
        now_running = { s->number, s->finished + 1, &o.before, o.name };
        is_complete = o.run();
        now_running = {};
    }
    if (!is_complete)
        return false;
    s->waiting.pop_front();
    s->finished++;
    return true;
}

/* Half of the rounds take the streams in one random order, so that a stream comes as early or as
 * late as it can; the others choose for each operation. */
static bool by_priority;

static void begin_round()
{
    by_priority = random_below(2);
    for (cudaStream_t s : streams)
        s->priority = random_below(1u << 30);
}

double patience()
{
    const char *text = getenv("FAKECUDA_PATIENCE");

    return text ? strtod(text, nullptr) : 120;
}

/* One of the streams that can run, except those in `stalled`; NULL: none. */
static cudaStream_t choose(const std::vector<cudaStream_t> &stalled)
{
    cudaStream_t chosen = nullptr;
    uint64_t n = 0;

    for (cudaStream_t s : streams) {
        if (!can_run(s) || std::find(stalled.begin(), stalled.end(), s) != stalled.end())
            continue;
        n++;
        if (!chosen || (by_priority ? s->priority < chosen->priority : random_below(n) == 0))
            chosen = s;
    }
    return chosen;
}

[[noreturn]] static void report_stalled(const std::vector<cudaStream_t> &stalled)
{
    std::string text;

    for (cudaStream_t s : stalled)
        text += std::string(text.empty() ? "" : ", ") + s->waiting.front().name + " of stream " +
                std::to_string(s->number);
    report(nullptr, "the device waits for ever for other ranks: %s", text.c_str());
}

/* Complete one operation. False: none can; or, unless w is WAIT, only those can that wait for other
 * processes. */
static bool step(waiting w)
{
    enum : long { SHORTEST = 50000, LONGEST = 800000 };
    struct timespec t = { 0, SHORTEST }; /* longer and longer: other ranks need the processors */
    std::vector<cudaStream_t> stalled;
    double waited = 0;

    for (;;) {
        cudaStream_t s = choose(stalled);

        if (s && run_first(s))
            return true;
        if (s) {
            stalled.push_back(s);
            continue;
        }
        if (stalled.empty() || w == GO_ON)
            return false;
        nanosleep(&t, nullptr);
        waited += 1e-9 * (double)(t.tv_nsec + SHORTEST);
        t.tv_nsec = std::min<long>(2 * t.tv_nsec, LONGEST);
        if (waited > patience())
            report_stalled(stalled);
        stalled.clear();
    }
}

void run_until(const point &p, const clock &known)
{
    begin_round();
    while (!is_passed(p))
        if (!step(WAIT))
            report(nullptr, "the host waits for ever: stream %u cannot go on", p.stream->number);
    clock_join(&host, known);
    for (uint64_t more = random_below(4); more > 0 && step(GO_ON); more--)
        ;
}

void run_one()
{
    begin_round();
    step(GO_ON);
}

const clock &host_clock()
{
    return host;
}

void run_by_chance()
{
    if (!random_below(2))
        return;
    begin_round();
    while (step(WAIT))
        ;
}

void run_all()
{
    begin_round();
    while (step(WAIT))
        ;
    for (cudaStream_t s : streams)
        clock_join(&host, s->now);
}

} // namespace fake
