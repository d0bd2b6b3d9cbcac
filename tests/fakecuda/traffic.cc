/*
 * tests/fakecuda/traffic.cc - how many sectors of 32 bytes of global memory, and how many
 * wavefronts of shared memory, the loads and stores of a kernel's warps take, and how few would do.
 *
 * The lanes of a warp run one after the other here, so a warp's request is put together again: the
 * accesses of its lanes at the same place in the code (the instruction and the calls that lead to
 * it), which each lane has reached for the same time since it last waited for other threads. A warp
 * whose lanes run together issues just these as one request: lanes that take different branches
 * come together again behind them, and in a loop they make the same round together. Only where a
 * lane leaves out an access in one round of a loop, and makes it in a later one, it is counted with
 * a wrong round; waiting ends this.
 *
 * A struct is copied by the widest words that its size lets be aligned, 16 bytes at most, as
 * hooks.cc demands that it is aligned; each word is a request.
 */
#include "tests/fakecuda/traffic.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <map>
#include <string>
#include <unordered_map>

#include "tests/fakecuda/block.h"

namespace fake
{

bool traffic_is_on;

enum : size_t { SECTOR = 32, BANK = 4, BANKS = 32, WORD_MAX = 16 };
enum { GLOBAL_LOAD, GLOBAL_STORE, SHARED_LOAD, SHARED_STORE, KINDS };

/* units: sectors, or wavefronts. */
struct counts {
    uint64_t requests, units, least;
};

/* The accesses of a warp's lanes that are one request; at[l] is NULL where lane l has none. */
struct warp_request {
    const char *at[WARP];
    size_t n;
    int kind;
};

/* What identifies a place in the code and a word of the access there. */
using code_place = uint64_t;

struct lane {
    std::vector<code_place> callers;
    std::unordered_map<code_place, uint32_t> times; /* since it last waited */
    uint32_t waits;
};

struct warp_requests {
    /* by how often the lane has waited */
    std::map<uint32_t, std::unordered_map<code_place, warp_request>> of_wait;
};

static lane lanes[THREADS_MAX];
static warp_requests warps[THREADS_MAX / WARP];
static counts of_kernel[KINDS];

void traffic_begin()
{
    traffic_is_on = getenv("FAKECUDA_TRAFFIC") != nullptr;
}

/* Mixes bits as splitmix64 does. */
static code_place mix(code_place a, uint64_t b)
{
    uint64_t z = (a ^ b) * 0xbf58476d1ce4e5b9;

    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* ---- what a request takes ---- */

/* How many different blocks of `size` bytes the lanes from `first` to `end` touch. */
static size_t touched(const warp_request &r, size_t size, unsigned first, unsigned end,
                      size_t *most_of_a_bank)
{
    uintptr_t blocks[WARP * 2 * WORD_MAX];
    size_t n = 0, of_bank[BANKS] = {};

    for (unsigned l = first; l < end; l++)
        for (uintptr_t p = (uintptr_t)r.at[l] / size; r.at[l]; p++) {
            if (p * size >= (uintptr_t)r.at[l] + r.n)
                break;
            blocks[n++] = p;
        }
    std::sort(blocks, blocks + n);
    n = (size_t)(std::unique(blocks, blocks + n) - blocks);
    for (size_t i = 0; i < n; i++)
        of_bank[blocks[i] % BANKS]++;
    *most_of_a_bank = *std::max_element(of_bank, of_bank + BANKS);
    return n;
}

static void count_global(counts *c, const warp_request &r)
{
    size_t bank;

    c->units += touched(r, SECTOR, 0, WARP, &bank);
    c->least += (touched(r, 1, 0, WARP, &bank) + SECTOR - 1) / SECTOR;
}

/* Lanes share a wavefront as long as their words are at most 128 bytes: 32 lanes, 16 with words of
 * 8 bytes, 8 with 16. A bank gives one of its words in a wavefront, to any number of lanes. */
static void count_shared(counts *c, const warp_request &r)
{
    unsigned together = (unsigned)std::min<size_t>(WARP, BANK * BANKS / r.n);

    for (unsigned l = 0; l < WARP; l += together) {
        size_t most;

        touched(r, BANK, l, l + together, &most);
        c->units += most;
        c->least += most > 0;
    }
}

static void count(const warp_request &r)
{
    counts *c = &of_kernel[r.kind];

    c->requests++;
    if (r.kind == GLOBAL_LOAD || r.kind == GLOBAL_STORE)
        count_global(c, r);
    else
        count_shared(c, r);
}

/* ---- which accesses are a request ---- */

static int kind_of(const void *p, bool is_write)
{
    if (p >= shared_begin() && p < shared_end())
        return is_write ? SHARED_STORE : SHARED_LOAD;
    if (is_kind(DEVICE_MEMORY, p) || is_kind(PINNED_MEMORY, p))
        return is_write ? GLOBAL_STORE : GLOBAL_LOAD;
    return KINDS; /* the program's own */
}

void traffic_access(const void *p, size_t n, bool is_write, const void *pc)
{
    const size_t word = std::min<size_t>(WORD_MAX, n & (~n + 1));
    const int kind = kind_of(p, is_write);
    lane *l = &lanes[here.thread];
    code_place place;

    if (kind == KINDS)
        return;
    place = mix(l->callers.empty() ? 0 : l->callers.back(), (uintptr_t)pc * KINDS + (unsigned)kind);
    place = mix(place, l->times[place]++);
    auto &requests = warps[here.thread / WARP].of_wait[l->waits];
    for (size_t at = 0; at < n; at += word) {
        warp_request &r = requests[mix(place, at)];

        r.at[here.thread % WARP] = (const char *)p + at;
        r.n = word;
        r.kind = kind;
    }
}

void traffic_call(const void *pc)
{
    auto &callers = lanes[here.thread].callers;

    callers.push_back(mix(callers.empty() ? 0 : callers.back(), (uintptr_t)pc));
}

void traffic_return()
{
    lanes[here.thread].callers.pop_back();
}

/* Requests to which another lane may still belong stay. */
void traffic_wait()
{
    const unsigned first = here.thread / WARP * WARP;
    auto &of_wait = warps[here.thread / WARP].of_wait;
    uint32_t least = UINT32_MAX;

    lanes[here.thread].waits++;
    lanes[here.thread].times.clear();
    for (unsigned i = first; i < first + WARP && i < block.n; i++)
        if (block.f[i].state != ENDED)
            least = std::min(least, lanes[i].waits);
    while (!of_wait.empty() && of_wait.begin()->first < least) {
        for (const auto &r : of_wait.begin()->second)
            count(r.second);
        of_wait.erase(of_wait.begin());
    }
}

/* ---- blocks and grids ---- */

void traffic_end_block()
{
    for (warp_requests &w : warps) {
        for (const auto &of : w.of_wait)
            for (const auto &r : of.second)
                count(r.second);
        w.of_wait.clear();
    }
    for (unsigned i = 0; i < block.n; i++) {
        lanes[i].callers.clear();
        lanes[i].times.clear();
        lanes[i].waits = 0;
    }
}

/* As tests/check/kernel_resources.py writes names: without spaces and parameters. */
static std::string name_of(const void *kernel)
{
    std::string name = linkage_name_of(kernel);
    int status;

    if (char *full = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status)) {
        name = full;
        free(full);
    }
    if (name.compare(0, 5, "void ") == 0)
        name.erase(0, 5);
    if (name.find('<') == std::string::npos)
        name.erase(std::min(name.find('('), name.size()));
    else
        name.erase(std::min(name.find(">(") + 1, name.size()));
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    return name;
}

/* A line for each launch. */
void traffic_end_grid()
{
    static auto &names = *new std::map<const void *, std::string>;
    std::string &name = names[here.kernel];
    std::string line;

    if (name.empty())
        name = name_of(here.kernel);
    for (const counts &c : of_kernel)
        line += " " + std::to_string(c.requests) + " " + std::to_string(c.units) + " " +
                std::to_string(c.least);
    append_line("FAKECUDA_TRAFFIC", "%s%s\n", name.c_str(), line.c_str());
    memset(of_kernel, 0, sizeof of_kernel);
}

} // namespace fake
