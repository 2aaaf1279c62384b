/* AdamW on matrices in as few passes over memory as their thresholds allow. The plain path, methods/adamw.py, is the
   specification; cpu.py declares the same structures and passes. With u = m / (a sqrt(v) + b), AdamW's bias-corrected
   direction, a pass does what it is asked for:

     UPDATE   take the gradient g into the moments m and v
     STORE    write u to the scratch memory w
     LOAD     read u from there instead of making it
     COLLECT  keep the magnitudes of u, as bit patterns, that lie in [low, high); count those above and the zeros
     MOVE     p <- decay p - lr clip(u)

   A known threshold takes one pass; one that is a multiple of a quantile of this step's |u| takes two, with an exact
   selection in between from what lies in a bracket around the last step's. Threads share nothing: each has its part of
   the entries, its room in the buffer and its own Found. */

#include "adam.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { UPDATE = 1, STORE = 2, LOAD = 4, COLLECT = 8, MOVE = 16 };
enum { BLOCK = 512, LANES = 8 };
enum { PARALLEL = 1 << 15 }; /* entries worth waking the threads for */
enum { KNOWN, PROPORTIONAL, AWAITED }; /* where the threshold comes from: plan.ThresholdSource */
static const double narrowest = 1.0 / 256; /* a bracket is never narrower than this share of the quantile, on either side */

typedef struct {
    int64_t kept, zeros;               /* kept may be more than the room: then there was not enough of it */
    int32_t above[LANES], most[LANES]; /* the count and the largest of those above, of every 8th number each */
} Found;

/* One matrix, and what to do with it. */
typedef struct {
    float *p, *m, *v;
    const float *g;
    int64_t n;
    int32_t operator;
    int32_t limits;    /* whether an infinite u takes the operator's limit; else it comes out NaN */
    int32_t source;    /* AWAITED: the matrix is not moved */
    int32_t asks;      /* whether the quantile at level q of the non-zero |u| is wanted */
    int32_t open;      /* whether the bracket has no upper end */
    float threshold;   /* where it is known */
    double q;
    double multiple;   /* where the threshold is proportional: so many times the quantile */
    double widest;     /* the half width of a bracket around a quantile of which nothing is known but its last value */
    Adam adam;
    /* Kept from step to step. */
    double quantile;      /* the last one */
    double width;         /* of the bracket around it, to either side, relative to it */
    /* Written anew in each step. */
    int32_t found;         /* whether the quantile was in the bracket; if not, the second pass was not made */
    int32_t first, second; /* the kinds of pass; second: 0 for none */
    int32_t low, high;     /* the ends of the bracket, as bit patterns */
} Job;

/* Memory to work in. */
typedef struct {
    float *direction; /* room for the direction of one matrix of up to `stored` entries */
    int64_t stored;
    int64_t small; /* of matrices with so few entries all magnitudes are kept, so that no guess can miss the quantile */
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

#if defined(__AVX2__)
static uint64_t places[256]; /* for each set of 8 bits: which are in it, a byte each */

__attribute__((constructor)) static void write_places(void) {
    for (int set = 0; set < 256; set++)
        for (int bit = 0, count = 0; bit < 8; bit++)
            if (set >> bit & 1) places[set] |= (uint64_t)bit << 8 * count++;
}

INLINE __m256i load8(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }

INLINE void store8(void *to, __m256i x) { _mm256_storeu_si256((__m256i *)to, x); }

/* `collect` for a whole block: without a branch, since which numbers lie in the bracket is chance. `open`: nothing lies
   above it. Writes up to 8 places beyond those kept, and has the memory that the next block needs fetched meanwhile. */
INLINE void collect_block(
    int open, const float *u, int32_t low, int32_t high, int32_t *kept, Found *found, const float *const ahead[4]
) {
    const __m256i magnitudes = _mm256_set1_epi32(INT32_MAX);
    const __m256i below_low = _mm256_set1_epi32(low - 1), below_high = _mm256_set1_epi32(high - 1);
    __m256i least = magnitudes, most = load8(found->most), above = load8(found->above);
    int64_t count = found->kept;
    for (int i = 0; i < BLOCK; i += LANES) {
        _mm_prefetch((const char *)(ahead[i / 8 % 2] + i / 16 * 16), _MM_HINT_T0);
        _mm_prefetch((const char *)(ahead[i / 8 % 2 + 2] + i / 16 * 16), _MM_HINT_T0);
        __m256i bits = _mm256_and_si256(load8(u + i), magnitudes), inside = _mm256_cmpgt_epi32(bits, below_low);
        least = _mm256_min_epi32(least, bits);
        if (!open) {
            __m256i beyond = _mm256_cmpgt_epi32(bits, below_high);
            inside = _mm256_andnot_si256(beyond, inside);
            above = _mm256_sub_epi32(above, beyond);
            most = _mm256_max_epi32(most, bits);
        }
        uint32_t set = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(inside));
        __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(places + set)));
        store8(kept + count, _mm256_permutevar8x32_epi32(bits, order));
        count += __builtin_popcount(set);
    }
    found->kept = count;
    store8(found->most, most), store8(found->above, above);
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(least, _mm256_setzero_si256()))) /* zeros are rare */
        for (int i = 0; i < BLOCK; i++) found->zeros += u[i] == 0;
}
#endif

/* Keep the magnitudes of `size` numbers that lie in the bracket [low, high), low >= 1, and count the others; where high is
   INT32_MAX, nothing lies above. `ahead`: what is read next. */
INLINE void collect(
    const float *u, int64_t size, int32_t low, int32_t high, int32_t *kept, int64_t room, Found *found,
    const float *const ahead[4]
) {
#if defined(__AVX2__)
    if (size == BLOCK && found->kept + BLOCK + LANES <= room) {
        if (high == INT32_MAX) collect_block(1, u, low, high, kept, found, ahead);
        else collect_block(0, u, low, high, kept, found, ahead);
        return;
    }
#endif
    for (int64_t i = 0; i < size; i++) {
        int32_t bits = magnitude(u[i]), beyond = high < INT32_MAX && bits >= high;
        found->zeros += bits == 0;
        found->above[0] += beyond;
        if (beyond && bits > found->most[0]) found->most[0] = bits;
        if (bits < low || beyond) continue;
        if (found->kept < room) kept[found->kept] = bits;
        found->kept++;
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
    int work, int operator, int limits, const Job *job, float c, int64_t from, int64_t n, const Workspace *space, int t
) {
    int32_t *restrict kept = space->kept + t * space->room;
    float *w = work & (STORE | LOAD) ? space->direction + from : 0;
    const Part x = {job->p + from, job->m + from, job->v + from, w, job->g + from, job->adam, threshold(c)};
    float blocks[2][BLOCK];
    Found mine = {0}; /* apart from those of other threads, which lie in the same line of the cache */
    for (int64_t start = 0, before = 0; start < n || before; start += BLOCK) {
        int64_t left = n - start, size = left > BLOCK ? BLOCK : left > 0 ? left : 0;
        float *restrict u = blocks[start / BLOCK % 2], *restrict old = blocks[(start / BLOCK + 1) % 2];
        int64_t past = start - BLOCK, next = start + BLOCK;
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
            const float *ahead[] = {x.g + next, x.m + next, x.v + next, work & STORE ? x.w + next : x.p + start};
            collect(u, size, job->low, job->high, kept, space->room, &mine, ahead);
        }
        before = work & MOVE ? size : 0;
    }
    space->found[t] = mine;
}

#define PART(work, operator, limits) part(work, operator, limits, job, c, from, n, space, t)
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
        for (int64_t i = 0; i < found->kept; i++) {
            space->kept[size] = space->kept[t * space->room + i];
            nan |= space->kept[size++] > INFINITE;
        }
        for (int i = 0; i < LANES; i++) {
            above += found->above[i];
            nan |= found->most[i] > INFINITE;
        }
        zeros += found->zeros;
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

/* Write down the bracket and the passes of a job: with nothing to guess from, the quantile is not looked for. */
static void plan_passes(Job *job, const Workspace *space) {
    int all = job->n <= space->small, guessed = job->quantile > 0 && !isinf(job->quantile);
    int looks = job->asks && (all || guessed), stores = job->n <= space->stored;
    float center = (float)job->quantile;
    job->low = all ? 1 : magnitude((float)(1 - job->width) * center); /* 1: all but zeros */
    job->high = all || job->open ? INT32_MAX : magnitude((float)(1 + job->width) * center);
    job->first = UPDATE | (looks ? COLLECT : 0) | (job->source == KNOWN ? MOVE : 0);
    job->second = 0;
    if (looks && job->source == PROPORTIONAL) {
        job->first |= stores ? STORE : 0;
        job->second = MOVE | (stores ? LOAD : 0);
    }
}

/* Look four times as far around the quantile as it moved of late. A narrow bracket keeps few entries where many are alike,
   as in Adam's first updates. */
static void follow(Job *job, double before) {
    double moved = 4 * fabs(job->quantile / before - 1), kept = 0.9 * job->width;
    double width = moved > kept ? moved : kept;
    job->width = width > narrowest ? width : narrowest;
    if (!(width < job->widest) || !isfinite(moved)) job->width = job->widest;
}

static Workspace space_for(const Job *job, const Workspace *shared) {
    Workspace space = *shared;
    if (job->n < PARALLEL) space.room *= space.threads, space.threads = 1;
    return space;
}

/* The step of all jobs, one after the other. Returns how many quantiles were asked for and not found, whose matrices have
   not moved unless their threshold is known; -1 for a kind of pass that is not there. */
int64_t adamw_step(Job *jobs, int64_t count, const Workspace *shared) {
    int64_t missed = 0;
    for (Job *job = jobs; job < jobs + count; job++) {
        Workspace space = space_for(job, shared);
        double before = job->quantile;
        plan_passes(job, &space);
        if (!pass(job->first, job, job->threshold, &space)) return -1;
        job->found = job->first & COLLECT ? select_quantile(job, &space) : 0;
        if (job->found) follow(job, before);
        else missed += job->asks;
        if (!job->second || !job->found) continue;
        if (!pass(job->second, job, (float)(job->multiple * job->quantile), &space)) return -1;
    }
    return missed;
}

/* One pass of the kind `first` over each job, with its threshold as known. Returns 0, or -1 as above. */
int64_t adamw_pass(const Job *jobs, int64_t count, const Workspace *shared) {
    for (const Job *job = jobs; job < jobs + count; job++) {
        Workspace space = space_for(job, shared);
        if (!pass(job->first, job, job->threshold, &space)) return -1;
    }
    return 0;
}
