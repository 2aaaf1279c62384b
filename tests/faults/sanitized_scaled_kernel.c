/* Calls the kernel scaled_adamw.c, which is included here, with random jobs as scaled_cpu.py makes them, for the sanitizers
   to watch. Every array has exactly the size that the kernel is told, so that one access beyond it is seen.

   sanitized_scaled_kernel SEED CALLS */

#include <stdio.h>

#include "scaled_adamw.c"
#include "random_numbers.h"

static int64_t *room(int64_t n) { return malloc((size_t)n * sizeof(int64_t)); }

static Job random_job(void) {
    int64_t rows = 1 + draw(40), columns = draw(20) ? 1 + draw(700) : PARALLEL / rows + draw(20), n = rows * columns;
    Job job = {.p = numbers(n, 0), .m = numbers(n, 0), .v = numbers(n, 1), .g = numbers(n, 0), .rows = rows, .columns = columns};
    job.row_sums = room(rows), job.row_counts = room(rows);
    job.column_sums = room(columns), job.column_counts = room(columns), job.excess = room(1);
    job.row_scales = numbers(rows, 1), job.column_scales = numbers(columns, 1);
    job.sketch = malloc(BINS * sizeof(float));
    job.by_columns = (int32_t)draw(2);
    job.of_gradient = (int32_t)draw(2);
    int64_t lines = job.by_columns ? columns : rows;
    job.look_by = 1 + draw((uint32_t)lines);
    job.look_from = draw((uint32_t)job.look_by);
    job.look_count = lines / job.look_by;
    job.ceiling = (int32_t)draw(INFINITE + 1u);
    job.operator = draw(2) ? SMOOTH : HARD;
    job.limits = (int32_t)draw(2);
    job.threshold = fabsf(odd_number());
    job.slope = draw(4) ? 0.5f : 1.0f;
    job.adam = (Adam){draw(2) ? 1 : -1, 0.9f, 0.1f, 0.99f, 0.01f, 1.0f, draw(2) ? 1e-8f : 0.0f, 1.0f, 0.01f};
    return job;
}

static void release(Job *job) {
    free(job->p), free(job->m), free(job->v), free((void *)job->g);
    free(job->row_sums), free(job->row_counts), free(job->column_sums), free(job->column_counts), free(job->excess);
    free((void *)job->row_scales), free((void *)job->column_scales), free(job->sketch);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    state = strtoull(words[1], 0, 10);
    for (long call = 0; call < atol(words[2]); call++) {
        int jobs = 1 + (int)draw(4), threads = 1 + (int)draw(50);
        Job job[4];
        for (int j = 0; j < jobs; j++) job[j] = random_job();
        int enough = scan(job, jobs, threads);
        sketch(job, jobs, threads);
        enough &= move(job, jobs, threads);
        for (int j = 0; j < jobs; j++) release(job + j);
        if (!enough) return 3;
    }
    printf("%s calls\n", words[2]);
    return 0;
}
