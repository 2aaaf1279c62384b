/* AdamW with a clip whose thresholds follow the scales of rows and columns: `Auto`, auto_threshold.py. scaled_cpu.py
   declares the same structure. A step makes three calls, with the host in between, which works on rows and columns:

     scan     sum the logarithms of |x| by row and by column
     sketch   count the sizes of some entries of x in the unit of their scales
     move     clip x, at the threshold times the scales of its entry, and move the weights

   What is clipped, x, is the direction u = m / (a sqrt(v) + b), made anew in each call, or the gradient itself, which is
   taken into the moments in `scan` or in `move`. The logarithm is the bit pattern of |x|: sums of integers are the same
   in every order. Threads have rows of their own. */

#include "adam.h"
#include <stdlib.h>

enum { PARALLEL = 1 << 15, BINS = 256 };
enum { SHIFT = 20, FIRST = (127 - 8) * 8 }; /* of efficiency.py: bins of an eighth of an octave, from 2^-8 on */

/* One matrix as it lies in memory, what is asked and what is found. */
typedef struct {
    float *p, *m, *v;
    const float *g;
    int64_t rows, columns;
    int64_t *row_sums, *column_sums;   /* of bit patterns, where x is not 0 */
    int64_t *row_counts, *column_counts; /* of entries that are not 0 */
    int64_t *excess;            /* one number: what the ceiling cuts off the bit patterns, over all entries */
    const float *row_scales, *column_scales;
    float *sketch;              /* BINS counts */
    int64_t look_from, look_by; /* the sketch takes every so many rows (by_columns: columns), beginning with this one */
    int64_t look_count;         /* how many of them */
    int32_t by_columns;
    int32_t of_gradient;        /* whether x is the gradient */
    int32_t ceiling;            /* the bit pattern that larger ones count as, at most that of inf */
    int32_t operator;           /* SMOOTH, or HARD for the guard too */
    int32_t limits;             /* whether an infinite x takes the operator's limit; else it comes out NaN */
    float threshold, slope;
    Adam adam;
} Job;

static int threads_for(const Job *job, int threads) {
    if (job->rows * job->columns < PARALLEL) return 1;
    return threads < job->rows ? threads : (int)job->rows;
}

/* Returns what the ceiling cuts off. */
INLINE int64_t scan_row(
    int of_gradient, const Job *job, int64_t row, int32_t *restrict bits, int64_t *restrict sums, int64_t *restrict zeros
) {
    const Adam adam = job->adam;
    const int64_t at = row * job->columns, columns = job->columns;
    float *restrict m = job->m + at, *restrict v = job->v + at;
    const float *restrict g = job->g + at;
    const int32_t ceiling = job->ceiling;
    int32_t least = INT32_MAX, most = 0;
    int64_t sum = 0, missing = 0, excess = 0;
    for (int64_t j = 0; j < columns; j++) {
        if (!of_gradient) advance(&adam, g[j], m + j, v + j);
        int32_t each = magnitude(of_gradient ? g[j] : direction(&adam, m[j], v[j]));
        most = each > most ? each : most;
        bits[j] = each = each < ceiling ? each : ceiling;
        least = each < least ? each : least;
    }
    for (int64_t j = 0; j < columns; j++) {
        sum += bits[j];
        sums[j] += bits[j];
    }
    if (least == 0) /* rare */
        for (int64_t j = 0; j < columns; j++) {
            missing += bits[j] == 0;
            zeros[j] += bits[j] == 0;
        }
    if (most > ceiling) /* rare */
        for (int64_t j = 0; j < columns; j++) {
            int32_t each = magnitude(of_gradient ? g[j] : direction(&adam, m[j], v[j]));
            excess += (each < INFINITE ? each : INFINITE) - bits[j];
        }
    job->row_sums[row] = sum;
    job->row_counts[row] = columns - missing;
    return excess;
}

/* Returns whether there was memory enough. */
int scan(Job *jobs, int64_t count, int32_t most_threads) {
    for (Job *job = jobs; job < jobs + count; job++) {
        int threads = threads_for(job, most_threads);
        int64_t columns = job->columns, room = 2 * columns + 1;
        int64_t *sums = calloc(room * threads, sizeof *sums); /* by thread: sums of columns, their zeros, the excess */
        int32_t *bits = malloc(columns * threads * sizeof *bits);
        if (sums && bits) {
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
            for (int t = 0; t < threads; t++) {
                int64_t *own = sums + room * t;
                for (int64_t i = job->rows * t / threads; i < job->rows * (t + 1) / threads; i++) {
                    if (job->of_gradient) own[room - 1] += scan_row(1, job, i, bits + columns * t, own, own + columns);
                    else own[room - 1] += scan_row(0, job, i, bits + columns * t, own, own + columns);
                }
            }
            *job->excess = 0;
            for (int t = 0; t < threads; t++) *job->excess += sums[room * t + room - 1];
            for (int64_t j = 0; j < columns; j++) {
                job->column_sums[j] = 0, job->column_counts[j] = job->rows;
                for (int t = 0; t < threads; t++) {
                    job->column_sums[j] += sums[room * t + j];
                    job->column_counts[j] -= sums[room * t + columns + j];
                }
            }
        }
        int enough = sums && bits;
        free(sums);
        free(bits);
        if (!enough) return 0;
    }
    return 1;
}

/* The bins of `count` entries of x from `at` on, `by` places apart; BINS for one that is 0. The bins are found before any
   is counted, so that finding them becomes vector code. */
INLINE void find_bins(
    int of_gradient, const Job *job, int64_t at, int64_t by, const float *restrict scales, float scale, int count,
    int32_t *restrict bins
) {
    const Adam adam = job->adam;
    const float *restrict m = job->m + at, *restrict v = job->v + at, *restrict g = job->g + at;
    for (int j = 0; j < count; j++) {
        float x = of_gradient ? g[j * by] : direction(&adam, m[j * by], v[j * by]);
        int32_t bits = magnitude(x / (scale * scales[j]));
        int32_t bin = ((bits < INFINITE ? bits : INFINITE) >> SHIFT) - FIRST;
        bin = bin < 0 ? 0 : bin < BINS ? bin : BINS - 1;
        bins[j] = bits ? bin : BINS;
    }
}

static void sketch_one(const Job *job) {
    enum { PIECE = 512 };
    int32_t counts[BINS + 1] = {0}, bins[PIECE];
    const int64_t along = job->by_columns ? job->rows : job->columns, by = job->by_columns ? job->columns : 1;
    const float *scales = job->by_columns ? job->row_scales : job->column_scales;
    for (int64_t k = 0; k < job->look_count; k++) {
        int64_t line = job->look_from + k * job->look_by, at = job->by_columns ? line : line * job->columns;
        float scale = (job->by_columns ? job->column_scales : job->row_scales)[line];
        for (int64_t j = 0; j < along; j += PIECE) {
            int count = along - j < PIECE ? (int)(along - j) : PIECE;
            if (by == 1 && job->of_gradient) find_bins(1, job, at + j, 1, scales + j, scale, count, bins);
            else if (by == 1) find_bins(0, job, at + j, 1, scales + j, scale, count, bins);
            else find_bins(job->of_gradient, job, at + j * by, by, scales + j, scale, count, bins);
            for (int i = 0; i < count; i++) counts[bins[i]]++;
        }
    }
    for (int i = 0; i < BINS; i++) job->sketch[i] = (float)counts[i];
}

void sketch(Job *jobs, int64_t count, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int64_t i = 0; i < count; i++) sketch_one(jobs + i);
}

/* x after the operator, at a threshold that is the product of its row's and its column's part: for smooth shrinkage these
   are one over the threshold, times log2(e). */
INLINE float clip(int operator, int limits, float x, float row, float column) {
    float at = row * column;
    if (operator == SMOOTH) {
        float size = x < 0 ? -x : x, kept = exp2_minus(size, at);
        if (limits) return size == 0 || size * at >= 124.0f ? 0.0f : x * kept; /* 0 * inf, where scales underflow, is NaN */
        return x * (size * at < 124.0f ? kept : 0.0f); /* inf * 0 is NaN */
    }
    float y = x > at ? at : x;
    y = x < -at ? -at : y;
    return limits ? y : y + 0.0f * x;
}

INLINE void move_row(
    int of_gradient, int operator, int limits, const Job *job, int64_t row, const float *restrict by_column
) {
    const Adam adam = job->adam;
    const int64_t at = row * job->columns, columns = job->columns;
    float *restrict p = job->p + at, *restrict m = job->m + at, *restrict v = job->v + at;
    const float *restrict g = job->g + at;
    const float c = job->threshold * job->row_scales[row], by_row = operator == SMOOTH ? LOG2_E / c : c;
    const float slope = job->slope, lr = adam.lr / slope;
    for (int64_t j = 0; j < columns; j++) {
        if (of_gradient) {
            advance(&adam, clip(operator, limits, g[j], by_row, by_column[j]) / slope, m + j, v + j);
            p[j] = adam.decay * p[j] - adam.lr * direction(&adam, m[j], v[j]);
        } else {
            float u = direction(&adam, m[j], v[j]);
            p[j] = adam.decay * p[j] - lr * clip(operator, limits, u, by_row, by_column[j]);
        }
    }
}

#define EACH_LIMIT(of_gradient, operator) \
    if (job->limits) move_row(of_gradient, operator, 1, job, i, by_column); \
    else move_row(of_gradient, operator, 0, job, i, by_column)

/* Returns whether there was memory enough. */
int move(Job *jobs, int64_t count, int32_t most_threads) {
    for (Job *job = jobs; job < jobs + count; job++) {
        int threads = threads_for(job, most_threads);
        float *by_column = malloc(job->columns * sizeof *by_column);
        if (!by_column) return 0;
        for (int64_t j = 0; j < job->columns; j++)
            by_column[j] = job->operator == SMOOTH ? 1.0f / job->column_scales[j] : job->column_scales[j];
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
        for (int t = 0; t < threads; t++)
            for (int64_t i = job->rows * t / threads; i < job->rows * (t + 1) / threads; i++) {
                if (job->of_gradient && job->operator == SMOOTH) {
                    EACH_LIMIT(1, SMOOTH);
                } else if (job->of_gradient) {
                    EACH_LIMIT(1, HARD);
                } else if (job->operator == SMOOTH) {
                    EACH_LIMIT(0, SMOOTH);
                } else {
                    EACH_LIMIT(0, HARD);
                }
            }
        free(by_column);
    }
    return 1;
}
