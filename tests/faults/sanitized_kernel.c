/* Calls the kernel adamw.c, which is included here, with random jobs as cpu.py makes them, for the sanitizers to watch.
   Every array has exactly the size that the kernel is told, so that one access beyond it is seen.

   sanitized_kernel SEED CALLS */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adamw.c"

static uint64_t state;

static uint32_t draw(uint32_t below) { /* Knuth's MMIX generator */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* Numbers of every kind: small and large ones, ties, zeros of both signs, subnormal ones, infinities, NaN. */
static float odd_number(void) {
    static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e-42f, 3e38f, INFINITY, -INFINITY, NAN};
    if (draw(8) == 0) return odd[draw(draw(4) ? 5 : 9)];
    return ((float)draw(2000001) - 1e6f) * (draw(3) ? 1e-6f : 1e3f);
}

static float *numbers(int64_t n, int nonnegative) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = odd_number();
        if (nonnegative) x[i] = fabsf(x[i]);
    }
    return x;
}

static Job random_job(int64_t n) {
    static const int32_t firsts[] = {UPDATE | MOVE, UPDATE | COLLECT | MOVE, UPDATE | STORE | COLLECT, UPDATE | COLLECT,
                                     UPDATE, STORE, MOVE};
    int32_t first = firsts[draw(7)], collects = first & COLLECT, low = (int32_t)draw(INT32_MAX), width = (int32_t)draw(1 << 26);
    Job job = {numbers(n, 0), numbers(n, 0), numbers(n, 1), first & STORE ? numbers(n, 0) : 0, numbers(n, 0), n, first};
    job.second = !collects || first & MOVE ? 0 : first & STORE ? LOAD | MOVE : draw(2) ? MOVE : 0;
    job.operator = (int32_t)draw(3);
    job.limits = (int32_t)draw(2);
    job.low = draw(2) ? 1 : low + 1;
    job.high = draw(2) || job.low > INT32_MAX - width ? INT32_MAX : job.low + width;
    job.threshold = job.second ? NAN : fabsf(odd_number());
    job.q = draw(4) ? draw(1001) / 1000.0 : 1.0;
    job.multiple = draw(5);
    job.adam = (Adam){draw(2) ? 1 : -1, 0.9f, 0.1f, 0.99f, 0.01f, 1.0f, draw(2) ? 1e-8f : 0.0f, 1.0f, 0.01f};
    return job;
}

static void release(Job *job) {
    free(job->p), free(job->m), free(job->v), free(job->w), free((void *)job->g);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    state = strtoull(words[1], 0, 10);
    for (long call = 0; call < atol(words[2]); call++) {
        int jobs = 1 + (int)draw(4), threads = 1 + (int)draw(3);
        Job job[4];
        int64_t largest = 0;
        for (int j = 0; j < jobs; j++) {
            int64_t n = draw(20) ? draw(2000) : PARALLEL - 2 + draw(2000); /* some are worth several threads */
            job[j] = random_job(n);
            if (n > largest) largest = n;
        }
        int64_t room = draw(3) ? largest : draw(64);
        Workspace space = {malloc((size_t)(room * threads) * sizeof(int32_t)), room, malloc((size_t)threads * sizeof(Found)), threads};
        int unknown = adamw(job, jobs, &space);
        for (int j = 0; j < jobs; j++) release(job + j);
        free(space.kept), free(space.found);
        if (unknown) return 3;
    }
    printf("%s calls\n", words[2]);
    return 0;
}
