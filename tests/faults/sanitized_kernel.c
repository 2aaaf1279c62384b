/* Calls the kernel adamw.c, which is included here, with random jobs as cpu.py makes them, for the sanitizers to watch.
   Every array has exactly the size that the kernel is told, so that one access beyond it is seen.

   sanitized_kernel SEED CALLS */

#include <stdio.h>

#include "adamw.c"
#include "random_numbers.h"

static Job random_job(int64_t n) {
    Job job = {.p = numbers(n, 0), .m = numbers(n, 0), .v = numbers(n, 1), .g = numbers(n, 0), .n = n};
    job.operator = (int32_t)draw(3);
    job.limits = (int32_t)draw(2);
    job.asks = (int32_t)draw(3) > 0;
    job.source = job.asks ? (int32_t)draw(3) : KNOWN;
    job.open = (int32_t)draw(2);
    job.threshold = fabsf(odd_number());
    job.q = draw(4) ? draw(1001) / 1000.0 : 1.0;
    job.multiple = draw(5);
    job.widest = 1.0 / 16;
    job.width = draw(3) ? job.widest : 1.0 / (16 + draw(240));
    job.quantile = fabsf(odd_number()); /* the guess: any number that a step may have left */
    job.first = draw(2) ? STORE : MOVE; /* of a single pass */
    job.adam = (Adam){draw(2) ? 1 : -1, 0.9f, 0.1f, 0.99f, 0.01f, 1.0f, draw(2) ? 1e-8f : 0.0f, 1.0f, 0.01f};
    return job;
}

static void release(Job *job) { free(job->p), free(job->m), free(job->v), free((void *)job->g); }

int main(int count, char **words) {
    if (count != 3) return 2;
    state = strtoull(words[1], 0, 10);
    for (long call = 0; call < atol(words[2]); call++) {
        int jobs = 1 + (int)draw(4), threads = 1 + (int)draw(3), single = draw(4) == 0, failed = 0;
        Job job[4];
        int64_t largest = 0;
        for (int j = 0; j < jobs; j++) {
            int64_t n = draw(20) ? draw(2000) : PARALLEL - 2 + draw(2000); /* some are worth several threads */
            job[j] = random_job(n);
            if (n > largest) largest = n;
        }
        int64_t room = draw(3) ? largest : draw(64), stored = single || draw(2) ? largest : draw(1000);
        Workspace space = {
            .direction = malloc((size_t)stored * sizeof(float)), .stored = stored, .small = draw(2) ? 0 : draw(1000),
            .kept = malloc((size_t)(room * threads) * sizeof(int32_t)), .room = room,
            .found = malloc((size_t)threads * sizeof(Found)), .threads = threads,
        };
        for (int step = 0; step < 2; step++) /* the second looks around what the first has found */
            failed |= single ? adamw_pass(job, jobs, &space) != 0 : adamw_step(job, jobs, &space) < 0;
        for (int j = 0; j < jobs; j++) release(job + j);
        free(space.direction), free(space.kept), free(space.found);
        if (failed) return 3;
    }
    printf("%s calls\n", words[2]);
    return 0;
}
