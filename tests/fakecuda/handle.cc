/* tests/fakecuda/handle.cc - see tests/fakecuda/handle.h. */
#include "tests/fakecuda/handle.h"

#include <mutex>
#include <set>

namespace fake
{

static auto &lock = *new std::mutex;
static bool may_stay;

/* LeakSanitizer reports what no pointer leads to after the destructors of static variables have
 * run. The set that is no static variable leads to its handles for ever. */
static std::set<const void *> &handles()
{
    static auto &after_a_failure = *new std::set<const void *>;
    static std::set<const void *> until_the_end;

    if (may_stay && !until_the_end.empty())
        after_a_failure.swap(until_the_end);
    return may_stay ? after_a_failure : until_the_end;
}

void handle_created(const void *handle)
{
    std::lock_guard<std::mutex> guard(lock);

    handles().insert(handle);
}

void handle_destroyed(const void *handle)
{
    std::lock_guard<std::mutex> guard(lock);

    handles().erase(handle);
}

void handles_may_stay()
{
    std::lock_guard<std::mutex> guard(lock);

    may_stay = true;
    handles();
}

} // namespace fake
