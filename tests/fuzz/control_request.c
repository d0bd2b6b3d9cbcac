/* tests/fuzz/control_request.c - requests on tp-run's socket, as any process of the user can send
 * them. The input is what a client sends. */
#include <sys/socket.h>
#include <sys/un.h>

#include "orchestrator/web/control.h"
#include "tests/fuzz/fuzz.h"

static json_t *answer(void *ctx, const json_t *request)
{
    const char *verb = json_string_value(json_object_get(request, "verb"));

    (void)ctx;
    return json_pack("{s:b, s:s?}", "ok", 1, "text", verb);
}

static struct control *serving(void)
{
    static struct control *control;
    struct home home;
    struct tp_err err = { 0 };

    if (!control) {
        home_here(&home, 0, "");
        fuzz_must(control_open(&control, fuzz_dir(), &home, &err) == TP_OK, err.msg);
    }
    return control;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct control *c = serving();
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(to.sun_path, sizeof to.sun_path, "%s", fuzz_path("control"));
    fuzz_must(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "cannot connect");
    if (send(fd, data, size, MSG_NOSIGNAL) >= 0)
        shutdown(fd, SHUT_WR);
    control_serve(c, answer, NULL);
    close(fd);
    return 0;
}
