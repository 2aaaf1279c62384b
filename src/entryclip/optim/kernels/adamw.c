/* AdamW on matrices in as few passes over memory as their thresholds allow. The plain path, methods/adamw.py, is the
   specification; cpu.py declares the same structures and passes. With u = m / (a sqrt(v) + b), AdamW's bias-corrected direction, a pass does what it is asked for:

     UPDATE   take the gradient g into the moments m and v
     STORE    write u to the scratch memory w
     LOAD     read u from there instead of making it
     COLLECT  keep the magnitudes of u, as bit patterns, that lie in [low, high); count those above and the zeros
     MOVE     p <- decay p - lr clip(u)

   A known threshold takes one pass; one that is a multiple of a quantile of this step's |u| takes two, with an exact
   selection in between from what lies around a guess. Threads share nothing: each has its part of the entries, its room
   in the buffer and its own Found. */

#include <math.h>
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { UPDATE = 1, STORE = 2, LOAD = 4, COLLECT = 8, MOVE = 16 };
enum { NONE, SMOOTH, HARD };
enum { BLOCK = 512, GROUP = 16, PARALLEL = 1 << 15 }; /* entries worth waking the threads for */

typedef struct {
    float sign, beta1, fresh1, beta2, fresh2, a, b, decay, lr; /* sign: -1 to maximize; fresh: 1 - beta */
} Adam;

typedef struct {
    int64_t kept, above, zeros; /* kept > room: there was not enough of it */
    int64_t top;                /* the largest bit pattern: above inf's it is NaN */
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

/* exp(-t) for t >= 0 to 2 ulp (the polynomial is Cephes'); beyond 104 it is 0, and so it is for NaN. */
static inline float exp_minus(float t) {
    t = t < 104.0f ? t : 104.0f;
    float n = (t * -1.44269504088896341f + 12582912.0f) - 12582912.0f; /* rounded to a whole number */
    float f = n * 2.12194440e-4f + (n * -0.693359375f - t);
    float y = 1.9875691500e-4f;
    y = y * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * (f * f) + (f + 1.0f);
    union { int32_t i; float f; } scale = {.i = ((int32_t)n + 127 + 64) << 23}; /* 2^(n + 64): not yet subnormal */
    return y * scale.f * 5.421010862427522e-20f;
}

/* A threshold that is NaN makes everything NaN; `limits` says whether an infinite u takes the operator's limit (0 for
   smooth shrinkage, the threshold for a hard clip) or comes out NaN: then the limit must not hide an overflow. Selections
   in place of branches, and constant `operator` and `limits`, so that the loop around it becomes vector code. */
static inline __attribute__((always_inline)) float clip(int operator, int limits, float u, float c, float rate) {
    float poison = c != c ? c : 0.0f;
    if (operator == SMOOTH) {
        float kept = exp_minus((u < 0 ? -u : u) * rate), y = u * kept; /* inf * 0 is NaN */
        if (!limits) return y + poison * u;
        y = kept == 0.0f ? 0.0f : y;
        y = rate == 0.0f ? u : y; /* an infinite threshold: no clip */
        return (u == u ? y : u) + poison;
    }
    if (operator == HARD) {
        float y = u > c ? c : u;
        y = u < -c ? -c : y;
        return y + (limits ? poison : poison * u);
    }
    return u;
}

static inline int32_t magnitude(float x) {
    union { float f; int32_t i; } bits = {.f = x};
    return bits.i & INT32_MAX;
}

/* Which of the GROUP numbers at `bits` are at least `limit` >= 1, as a mask. */
static inline uint32_t at_least(const int32_t *bits, int32_t limit) {
#if defined(__AVX512F__)
    return _mm512_cmpge_epi32_mask(_mm512_loadu_si512(bits), _mm512_set1_epi32(limit));
#elif defined(__AVX2__)
    __m256i below = _mm256_set1_epi32(limit - 1);
    __m256i low = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)bits), below);
    __m256i high = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)(bits + 8)), below);
    return _mm256_movemask_ps(_mm256_castsi256_ps(low)) | _mm256_movemask_ps(_mm256_castsi256_ps(high)) << 8;
#else
    uint32_t mask = 0;
    for (int i = 0; i < GROUP; i++) mask |= (uint32_t)(bits[i] >= limit) << i;
    return mask;
#endif
}

/* Append those of the GROUP numbers at `bits` that the mask says, as far as there is room. */
static inline void append(const int32_t *bits, uint32_t mask, int32_t *kept, int64_t room, Found *found) {
#if defined(__AVX512F__)
    if (found->kept + GROUP <= room) {
        _mm512_mask_compressstoreu_epi32(kept + found->kept, (__mmask16)mask, _mm512_loadu_si512(bits));
        found->kept += __builtin_popcount(mask);
        return;
    }
#endif
    for (; mask; mask &= mask - 1, found->kept++)
        if (found->kept < room) kept[found->kept] = bits[__builtin_ctz(mask)];
}

/* Append to `kept` what lies in the bracket. `bits` are whole groups: the last is padded with zeros. Far out in the tail,
   where the quantiles of interest are, most groups have nothing to keep. */
static inline void collect(
    const int32_t *bits, int64_t n, int32_t low, int32_t high, int32_t *kept, int64_t room, Found *found
) {
    for (int64_t start = 0; start < n; start += GROUP) {
        uint32_t inside = at_least(bits + start, low);
        if (!inside) continue;
        if (high != INT32_MAX) {
            uint32_t above = at_least(bits + start, high);
            found->above += __builtin_popcount(above);
            inside &= ~above;
        }
        append(bits + start, inside, kept, room, found);
    }
}

static inline __attribute__((always_inline)) void part(
    int work, int operator, int limits, const Job *job, float c, int64_t from, int64_t n, int32_t *restrict kept,
    int64_t room, Found *found
) {
    float *restrict p = job->p + from, *restrict m = job->m + from, *restrict v = job->v + from;
    float *restrict w = work & (STORE | LOAD) ? job->w + from : 0;
    const float *restrict g = job->g + from;
    const Adam adam = job->adam;
    const float rate = 1.0f / c;
    int32_t bits[BLOCK], top = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t size = start + BLOCK < n ? BLOCK : n - start;
        int32_t least = INT32_MAX;
        for (int64_t j = 0; j < size; j++) {
            int64_t i = start + j;
            float u;
            if (work & UPDATE) {
                float gi = adam.sign * g[i];
                float d = gi - m[i];
                m[i] = adam.fresh1 < 0.5f ? m[i] + adam.fresh1 * d : gi - adam.beta1 * d; /* torch's lerp */
                v[i] = adam.beta2 * v[i] + adam.fresh2 * gi * gi; /* in torch's order: gi * gi alone may overflow */
            }
            if (work & LOAD) u = w[i];
            else u = m[i] / (adam.a * sqrtf(v[i]) + adam.b);
            if (work & STORE) w[i] = u;
            if (work & COLLECT) {
                bits[j] = magnitude(u);
                least = bits[j] < least ? bits[j] : least;
                top = bits[j] > top ? bits[j] : top;
            }
            if (work & MOVE) p[i] = adam.decay * p[i] - adam.lr * clip(operator, limits, u, c, rate);
        }
        if (work & COLLECT) {
            for (int64_t j = size; j % GROUP; j++) bits[j] = 0;
            collect(bits, size, job->low, job->high, kept, room, found);
            if (least == 0) /* rare: counting them always would cost a tenth of the pass */
                for (int64_t j = 0; j < size; j++) found->zeros += bits[j] == 0;
        }
    }
    found->top = top;
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
static int pass(int work, const Job *job, float c, const Workspace *space) {
    int threads = space->threads, unknown = 0;
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
    int64_t size = 0, above = 0, zeros = 0, top = 0;
    for (int t = 0; t < space->threads; t++) {
        const Found *found = space->found + t;
        if (found->kept > space->room) return 0;
        for (int64_t i = 0; i < found->kept; i++) space->kept[size++] = space->kept[t * space->room + i];
        above += found->above;
        zeros += found->zeros;
        top = found->top > top ? found->top : top;
    }
    if (top > 0x7F800000) {
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
