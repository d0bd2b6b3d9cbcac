/*
 * tests/bench/lib/llmc_training.c - trains a GPT-2 with llm.c's fp32 code on one thread, by the
 * rules of docs/TRAINING.md. lib/llmc.py builds it with -I DIR, where DIR has llm.c; it is not part
 * of the project's own build.
 *
 *   llmc_training CHECKPOINT TOKENS BATCH SEQ STEPS LR
 *
 * CHECKPOINT is llm.c's file of weights, TOKENS a file of unsigned 16-bit tokens. Prints a line for
 * every step: loss, CPU seconds, wall seconds, peak bytes. llm.c has no clipping, so this program
 * clips; its weight decay is for all tensors, also for biases and norms.
 */
#define TESTING /* without llm.c's main */
#include "train_gpt2.c"

#include <sys/resource.h>

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void clip(float *grad, size_t n)
{
    double square = 0;
    float by;

    for (size_t i = 0; i < n; i++)
        square += (double)grad[i] * (double)grad[i];
    by = (float)(1 / (sqrt(square) + 1e-6));
    for (size_t i = 0; by < 1 && i < n; i++)
        grad[i] *= by;
}

/* Sequence b of step s is sample (s batch + b) mod n, as in docs/TRAINING.md. */
static void batch_at(int *inputs, int *targets, const uint16_t *tokens, size_t n, int step,
                     int batch, int seq)
{
    for (int b = 0; b < batch; b++) {
        const uint16_t *from = tokens + (size_t)(step * batch + b) % ((n - 1) / seq) * seq;

        for (int t = 0; t < seq; t++) {
            inputs[b * seq + t] = from[t];
            targets[b * seq + t] = from[t + 1];
        }
    }
}

int main(int argc, char **argv)
{
    static uint16_t tokens[1 << 20];
    int batch = atoi(argv[3]), seq = atoi(argv[4]), steps = atoi(argv[5]);
    int *inputs = mallocCheck(2 * batch * seq * sizeof *inputs), *targets = inputs + batch * seq;
    FILE *file = fopenCheck(argv[2], "rb");
    size_t n = fread(tokens, sizeof *tokens, sizeof tokens / sizeof *tokens, file);
    struct rusage usage;
    GPT2 model;

    (void)argc;
    gpt2_build_from_checkpoint(&model, argv[1]);
    for (int s = 0; s < steps; s++) {
        double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);

        batch_at(inputs, targets, tokens, n, s, batch, seq);
        gpt2_forward(&model, inputs, targets, batch, seq);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        clip(model.grads_memory, model.num_parameters);
        gpt2_update(&model, (float)atof(argv[6]), 0.9f, 0.95f, 1e-8f, 0.1f, s + 1);
        getrusage(RUSAGE_SELF, &usage);
        printf("step %.9g %.9g %.9g %lld\n", model.mean_loss,
               seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, seconds(CLOCK_MONOTONIC) - wall,
               usage.ru_maxrss * 1024ll);
    }
    return 0;
}
