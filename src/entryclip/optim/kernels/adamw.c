/* AdamW on matrices in as few passes over memory as their thresholds allow. The plain path, methods/adamw.py, is the
   specification; cpu.py declares the same structures and passes. With u = m / (a sqrt(v) + b), AdamW's bias-corrected
   direction, a pass does what it is asked for:

     UPDATE   take the gradient g into the moments m and v
     STORE    write u to the scratch memory w
     LOAD     read u from there instead of making it
     COLLECT  keep the magnitudes of u, as bit patterns, that lie in [low, high); count those above and the zeros
     MOVE     p <- decay p - lr clip(u)

   A known threshold takes one pass; one that is a multiple of a quantile of this step's |u| takes two, with an exact
   selection in between from what lies around a guess. Threads share nothing: each has its part of the entries, its room
   in the buffer and its own Found. */

#include "adam.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { UPDATE = 1, STORE = 2, LOAD = 4, COLLECT = 8, MOVE = 16 };
enum { BLOCK = 512, GROUP = 16, ALL = (1 << GROUP) - 1 };
enum { PARALLEL = 1 << 15 }; /* entries worth waking the threads for */

typedef struct {
    int64_t kept, above, zeros; /* kept > room: there was not enough of it */
    int64_t nan;                /* whether one of those kept or above is NaN */
} Found;

/* One matrix, and what to do with it. */
typedef struct {
    float *p, *m, *v, *w; /* w: room for the direction, or NULL where it is to be made anew */
    const float *g;
    int64_t n;
    int32_t first, second; /* the kinds of pass; second: 0 for none, or when the quantile is known */
    int32_t operator;
    int32_t limits;    /* whether an infinite u takes the operator's limit; else it comes out NaN */
    int32_t low, high; /* the ends between which the quantile is looked for, as bit patterns */
    float threshold;   /* NaN: `multiple` times the quantile at level q of the non-zero |u| */
    double q, multiple;
    Adam adam;
    double quantile; /* what was found */
    int32_t found;   /* whether it was; if not, the second pass was not made */
} Job;

/* Memory for the threads to work in. */
typedef struct {
    int32_t *kept; /* room for each thread */
    int64_t room;
    Found *found; /* one for each thread */
    int32_t threads;
} Workspace;

/* A threshold as the loops need it. */
typedef struct {
    float c;     /* the threshold */
    float rate;  /* log2(e) / c */
    float limit; /* where smooth shrinkage leaves nothing of u: exp(-86) is close to the smallest normal number */
} Threshold;

static Threshold threshold(float c) {
    float rate = LOG2_E / c;
    return (Threshold){c, rate, isinf(rate) ? 0.0f : 86.0f * c};
}

/* `limits` says whether an infinite u takes the operator's limit (0 for smooth shrinkage, the threshold for a hard clip)
   or comes out NaN: then the limit must not hide an overflow. A threshold that is NaN is dealt with before. Selections in
   place of branches, and constant `operator` and `limits`, so that the loop around it becomes vector code. */
INLINE float clip(int operator, int limits, float u, Threshold at) {
    if (operator == SMOOTH) {
        float size = u < 0 ? -u : u, kept = exp2_minus(size, at.rate);
        if (limits) return size >= at.limit ? 0.0f : u * kept;
        return u * (size < at.limit ? kept : 0.0f); /* inf * 0 is NaN */
    }
    if (operator == HARD) {
        float y = u > at.c ? at.c : u;
        y = u < -at.c ? -at.c : y;
        return limits ? y : y + 0.0f * u;
    }
    return u;
}

/* Which of the GROUP numbers at u have a magnitude, as a bit pattern, of at least `limit` >= 1, as a mask. */
static inline uint32_t at_least(const float *u, int32_t limit) {
#if defined(__AVX512F__)
    __m512i bits = _mm512_and_si512(_mm512_loadu_si512(u), _mm512_set1_epi32(INT32_MAX));
    return _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(limit));
#elif defined(__AVX2__)
    __m256i below = _mm256_set1_epi32(limit - 1), magnitude = _mm256_set1_epi32(INT32_MAX);
    __m256i low = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)u), magnitude);
    __m256i high = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(u + 8)), magnitude);
    uint32_t first = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(low, below)));
    return first | (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(high, below))) << 8;
#else
    uint32_t mask = 0;
    for (int i = 0; i < GROUP; i++) mask |= (uint32_t)(magnitude(u[i]) >= limit) << i;
    return mask;
#endif
}

/* Keep what lies in the bracket of the first `size` numbers at u. They are followed by zeros up to a whole group. Far out
   in the tail, where the quantiles of interest are, most groups have nothing to keep. */
static inline void collect(
    const float *u, int64_t size, int32_t low, int32_t high, int32_t *kept, int64_t room, Found *found
) {
    for (int64_t start = 0; start < size; start += GROUP) {
        uint32_t inside = at_least(u + start, low);
        if (!inside) continue;
        uint32_t above = high == INT32_MAX ? 0 : at_least(u + start, high);
        found->above += __builtin_popcount(above);
        if (at_least(u + start, INFINITE + 1)) found->nan = 1;
        inside &= ~above;
        if (inside == ALL && found->kept + GROUP <= room) { /* a small matrix is kept whole */
            for (int i = 0; i < GROUP; i++) kept[found->kept + i] = magnitude(u[start + i]);
            found->kept += GROUP;
            continue;
        }
        for (; inside; inside &= inside - 1, found->kept++)
            if (found->kept < room) kept[found->kept] = magnitude(u[start + __builtin_ctz(inside)]);
    }
}

/* The part of a job that one thread does. */
typedef struct {
    float *restrict p, *restrict m, *restrict v, *restrict w;
    const float *restrict g;
    Adam adam;
    Threshold at;
} Part;

/* u at place i, after the gradient was taken in if that is asked for. */
INLINE float direction_at(int work, const Part *x, int64_t i) {
    if (work & LOAD) return x->w[i];
    if (work & UPDATE) advance(&x->adam, x->g[i], x->m + i, x->v + i);
    float u = direction(&x->adam, x->m[i], x->v[i]);
    if (work & STORE) x->w[i] = u;
    return u;
}

INLINE void move(int operator, int limits, const Part *x, int64_t i, float u) {
    x->p[i] = x->adam.decay * x->p[i] - x->adam.lr * clip(operator, limits, u, x->at);
}

/* Make the directions of one block while those of the block before move the weights: roots and divisions of the one and
   the exponential of the other then run at the same time. */
INLINE void part(
    int work, int operator, int limits, const Job *job, float c, int64_t from, int64_t n, int32_t *restrict kept,
    int64_t room, Found *found
) {
    float *w = work & (STORE | LOAD) ? job->w + from : 0;
    const Part x = {job->p + from, job->m + from, job->v + from, w, job->g + from, job->adam, threshold(c)};
    float blocks[2][BLOCK];
    for (int64_t start = 0, before = 0; start < n || before; start += BLOCK) {
        int64_t left = n - start, size = left > BLOCK ? BLOCK : left > 0 ? left : 0;
        float *restrict u = blocks[start / BLOCK % 2], *restrict old = blocks[(start / BLOCK + 1) % 2];
        int64_t past = start - BLOCK;
        if (size == BLOCK && before == BLOCK) {
            for (int64_t j = 0; j < BLOCK; j++) {
                u[j] = direction_at(work, &x, start + j);
                move(operator, limits, &x, past + j, old[j]);
            }
        } else {
            for (int64_t j = 0; j < size; j++) u[j] = direction_at(work, &x, start + j);
            for (int64_t j = 0; j < before; j++) move(operator, limits, &x, past + j, old[j]);
        }
        if (work & COLLECT) {
            int32_t zeros = 0;
            for (int64_t j = 0; j < size; j++) zeros += u[j] == 0;
            found->zeros += zeros;
            for (int64_t j = size; j % GROUP; j++) u[j] = 0;
            collect(u, size, job->low, job->high, kept, room, found);
        }
        before = work & MOVE ? size : 0;
    }
}

#define PART(work, operator, limits) \
    part(work, operator, limits, job, c, from, n, space->kept + t * space->room, space->room, space->found + t)
#define EACH_OPERATOR(work) \
    if (job->operator == SMOOTH && job->limits) PART(work, SMOOTH, 1); \
    else if (job->operator == SMOOTH) PART(work, SMOOTH, 0); \
    else if (job->operator == HARD && job->limits) PART(work, HARD, 1); \
    else if (job->operator == HARD) PART(work, HARD, 0); \
    else PART(work, NONE, 0)

/* One pass over a matrix by all threads. Returns whether this kind of pass is there. */
static int pass(int work, const Job *original, float c, const Workspace *space) {
    int threads = space->threads, unknown = 0;
    Job copy = *original, *job = &copy;
    if (isinf(c) && job->limits) job->operator = NONE;              /* no clip: an infinite u stays what it is */
    if (isnan(c) && job->operator != NONE) job->adam.lr = c, c = 1; /* a threshold that is NaN makes all weights NaN */
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(| : unknown) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t from = job->n * t / threads / BLOCK * BLOCK;
        int64_t n = (t + 1 == threads ? job->n : job->n * (t + 1) / threads / BLOCK * BLOCK) - from;
        space->found[t] = (Found){0};
        switch (work) {
        case UPDATE | MOVE: EACH_OPERATOR(UPDATE | MOVE); break;
        case UPDATE | COLLECT | MOVE: EACH_OPERATOR(UPDATE | COLLECT | MOVE); break;
        case UPDATE | STORE | COLLECT: PART(UPDATE | STORE | COLLECT, NONE, 0); break;
        case UPDATE | COLLECT: PART(UPDATE | COLLECT, NONE, 0); break;
        case UPDATE: PART(UPDATE, NONE, 0); break;
        case STORE: PART(STORE, NONE, 0); break;
        case LOAD | MOVE: EACH_OPERATOR(LOAD | MOVE); break;
        case MOVE: EACH_OPERATOR(MOVE); break;
        default: unknown = 1;
        }
    }
    return !unknown;
}

/* The number of rank `place` among the n at x and the next one up (*next is left alone if that is the last), by
   counting in 256 bins, again and again in the bin that has it. Reorders x. */
static int32_t pick(int32_t *x, int64_t n, int64_t place, int32_t *next) {
    for (;;) {
        int32_t least = x[0], most = x[0];
        for (int64_t i = 0; i < n; i++) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        if (least == most) {
            if (place + 1 < n) *next = least;
            return least;
        }
        int shift = 0;
        while ((most - least) >> shift > 255) shift++;
        int64_t counts[256] = {0}, bin = 0, size = 0, above = INT32_MAX;
        for (int64_t i = 0; i < n; i++) counts[(x[i] - least) >> shift]++;
        while (place >= counts[bin]) place -= counts[bin++];
        for (int64_t i = 0; i < n; i++) {
            int64_t mine = (x[i] - least) >> shift;
            above = mine > bin && x[i] < above ? x[i] : above;
            x[size] = x[i];
            size += mine == bin;
        }
        if (above < INT32_MAX) *next = (int32_t)above;
        n = size;
    }
}

static double number(int32_t bits) {
    union { int32_t i; float f; } x = {.i = bits};
    return x.f;
}

/* The quantile of the non-zero magnitudes from what a pass has kept: selection.among and quantile.interpolate for one
   matrix. Returns whether the guess was good enough. */
static int select_quantile(Job *job, const Workspace *space) {
    int64_t size = 0, above = 0, zeros = 0, nan = 0;
    for (int t = 0; t < space->threads; t++) {
        const Found *found = space->found + t;
        if (found->kept > space->room) return 0;
        for (int64_t i = 0; i < found->kept; i++) space->kept[size++] = space->kept[t * space->room + i];
        above += found->above;
        zeros += found->zeros;
        nan |= found->nan;
    }
    if (nan) {
        job->quantile = NAN;
        return 1;
    }
    int64_t ranked = job->n - 1 - zeros > 0 ? job->n - 1 - zeros : 0;
    double position = job->q * (double)ranked, whole = floor(position), fraction = position - whole;
    int64_t rank = zeros + (int64_t)whole < job->n - 1 ? zeros + (int64_t)whole : job->n - 1;
    int64_t place = rank - (job->n - size - above);
    if (zeros == job->n) { /* nothing to rank */
        job->quantile = 0;
        return 1;
    }
    if (place < 0 || place >= size || (place == size - 1 && rank < job->n - 1)) return 0;
    int32_t next = -1, bits = pick(space->kept, size, place, &next);
    double low = number(bits), high = next < 0 ? low : number(next), step = high - low;
    if (low == high || fraction == 0) job->quantile = low;
    else if (isinf(high)) job->quantile = high;
    else job->quantile = fraction < 0.5 ? low + step * fraction : high - step * (1 - fraction);
    job->quantile = (float)job->quantile;
    return 1;
}

/* All jobs one after the other. Returns 0, or 1 for a kind of pass that is not there. */
int adamw(Job *jobs, int64_t count, const Workspace *shared) {
    for (Job *job = jobs; job < jobs + count; job++) {
        Workspace space = *shared;
        if (job->n < PARALLEL) space.threads = 1;
        if (!pass(job->first, job, job->threshold, &space)) return 1;
        job->found = job->first & COLLECT ? select_quantile(job, &space) : 0;
        if (!job->second || !job->found) continue;
        if (!pass(job->second, job, (float)(job->multiple * job->quantile), &space)) return 1;
    }
    return 0;
}
