/* The models of an agent's observations under a shared prior, one agent after the other (`prior.transfer`).

   With K the covariance of a model, noise included, 1 the vector of ones and r the residual:

       log likelihood = -(r' P r + log |K| + log(1' K^-1 1)) / 2,    P = K^-1 - K^-1 1 1' K^-1 / (1' K^-1 1)
       v = K^-1 (rest - m 1),    m = 1' K^-1 r / (1' K^-1 1) + c / sqrt(1' K^-1 1) */

#include "factor.h"

typedef struct {
    long n, t; /* agents, observations of each */
    long G;    /* points of the grid */
} Sizes;

typedef struct {
    double *K, *residual, *ones, *v, *at; /* t x padded t; padded t */
} Arrays;

typedef struct {
    const double *residual; /* n x t */
    const double *rest, *c; /* n x t and n, for `solved`; else NULL */
    double *likelihood;     /* n, or NULL; NaN where K is not positive definite */
    double *solved;         /* n x t, or NULL; its first number is NaN where K is not positive definite */
} Wanted;

static Arrays arrays_of(const Sizes *sizes, Memory *memory)
{
    const long tp = up_to(sizes->t, DOUBLES);
    return (Arrays){doubles(memory, sizes->t * tp), doubles(memory, tp), doubles(memory, tp), doubles(memory, tp),
                    doubles(memory, tp)};
}

/* What is wanted of agent a, whose covariance is in arrays->K. */
static void answer(const Arrays *arrays, long a, long t, const Wanted *wanted)
{
    const long tp = up_to(t, DOUBLES);
    double *const K = arrays->K, *const r = arrays->residual, *const one = arrays->ones, *const v = arrays->v;
    if (!factorise(K, t)) {
        if (wanted->likelihood != NULL)
            wanted->likelihood[a] = NAN;
        if (wanted->solved != NULL)
            wanted->solved[a * t] = NAN;
        return;
    }
    for (long i = 0; i < tp; i++) {
        r[i] = i < t ? wanted->residual[a * t + i] : 0.0;
        one[i] = i < t ? 1.0 : 0.0;
    }
    forward(K, t, r);
    forward(K, t, one);
    const double precision = dot(one, one, tp), shared = dot(one, r, tp);
    if (wanted->likelihood != NULL) {
        double logs = 0.0, product = 1.0;
        for (long k = 0; k < t; k++) {
            product *= K[k * tp + k];
            if (product < 1e-140 || product > 1e140) { /* a factor's diagonal lies far within the square of that */
                logs += log(product);
                product = 1.0;
            }
        }
        logs += log(product);
        wanted->likelihood[a] = -0.5 * (dot(r, r, tp) - shared * shared / precision + log(precision)) - logs;
    }
    if (wanted->solved != NULL) {
        const double constant = shared / precision + wanted->c[a] / sqrt(precision);
        for (long i = 0; i < tp; i++)
            v[i] = i < t ? wanted->rest[a * t + i] - constant : 0.0;
        forward(K, t, v);
        backward(K, t, v);
        for (long i = 0; i < t; i++)
            wanted->solved[a * t + i] = v[i];
    }
}

/* Covariances between points of the grid, noise to be added. table: G x G, symmetric; index: n x t. Returns 1 without
   memory. */
int table_models(const Sizes *sizes, const double *table, const int *index, double noise, const Wanted *wanted)
{
    const long t = sizes->t, tp = up_to(t, DOUBLES);
    Memory memory = {0};
    const Arrays arrays = arrays_of(sizes, &memory);
    if (memory.failed)
        return release(&memory);
    for (long a = 0; a < sizes->n; a++) {
        const int *at = index + a * t;
        for (long j = 0; j < t; j++) {
            const double *row = table + (long)at[j] * sizes->G;
            double *column = arrays.K + j * tp;
            for (long i = j / DOUBLES * DOUBLES; i < t; i++)
                column[i] = row[at[i]];
            for (long i = t; i < tp; i++)
                column[i] = 0.0;
            column[j] += noise;
        }
        answer(&arrays, a, t, wanted);
    }
    release(&memory);
    return 0;
}

/* SE covariances on a line, noise to be added. points: n x t; hyper: 3 x n, length-scales, variances and noise
   variances. Returns 1 without memory. */
int line_models(const Sizes *sizes, const double *points, const double *hyper, const Wanted *wanted)
{
    const long n = sizes->n, t = sizes->t, tp = up_to(t, DOUBLES);
    Memory memory = {0};
    const Arrays arrays = arrays_of(sizes, &memory);
    if (memory.failed)
        return release(&memory);
    for (long a = 0; a < n; a++) {
        for (long i = 0; i < tp; i++)
            arrays.at[i] = i < t ? points[a * t + i] : FAR;
        covariance(arrays.at, t, hyper[a], hyper[n + a], arrays.K);
        for (long i = 0; i < t; i++)
            arrays.K[i * tp + i] += hyper[2 * n + a];
        answer(&arrays, a, t, wanted);
    }
    release(&memory);
    return 0;
}
