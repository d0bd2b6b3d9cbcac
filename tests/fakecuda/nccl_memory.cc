/* tests/fakecuda/nccl_memory.cc - see tests/fakecuda/nccl_memory.h. */
#include "tests/fakecuda/nccl_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakecuda/stream.h"

namespace fake
{

void nccl_pause_for(const char *what, int rank, double patience, double *waited)
{
    const struct timespec t = { 0, 100000 };

    nanosleep(&t, nullptr);
    *waited += 1e-4;
    if (*waited > patience)
        report(nullptr, "NCCL: rank %d waits for ever: %s", rank, what);
}

void nccl_pause(const char *what, int rank, double *waited)
{
    nccl_pause_for(what, rank, std::max(patience(), 60.0),
                   waited); /* processes need time to start */
}

nccl_shared *nccl_join(const std::string &name, int rank, int size, size_t place)
{
    const char *folder = getenv("FAKECUDA_SHARED");
    std::string path = std::string(folder ? folder : "/dev/shm") + "/" + name;
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600), none = 0;

    if (size < 1 || size > (int)NCCL_RANKS_MAX || rank < 0 || rank >= size)
        report(nullptr, "NCCL: rank %d of %d ranks", rank, size);
    if (fd < 0 || ftruncate(fd, sizeof(nccl_shared)))
        report(nullptr, "NCCL: %s cannot be made: %s", path.c_str(), strerror(errno));
    void *p = mmap(nullptr, sizeof(nccl_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        report(nullptr, "NCCL: %s cannot be mapped: %s", path.c_str(), strerror(errno));
    auto *shared = (nccl_shared *)p;
    if (!shared->size.compare_exchange_strong(none, size) && none != size)
        report(nullptr, "NCCL: rank %d joins a communicator of %d ranks, and another rank says %d",
               rank, size, none);
    shared->places[rank] = place;
    shared->pids[rank] = (int)getpid();
    shared->joined++;
    nccl_wait("not all ranks have joined the communicator", rank,
              [=] { return shared->joined >= size; });
    unlink(path.c_str()); /* by each rank: only the first finds it */
    return shared;
}

} // namespace fake
