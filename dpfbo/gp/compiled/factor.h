/* The Cholesky factor of a small matrix, and triangular solves with it.

   A matrix is stored as t columns, each padded to a multiple of DOUBLES ("padded t"); a vector is padded likewise. The
   padding is 0. Entries above the diagonal are not used. */

#ifndef DPFBO_FACTOR_H
#define DPFBO_FACTOR_H

#include <float.h>
#include <math.h>

#include "vectors.h"

INLINE double dot(const double *a, const double *b, long n)
{
    Doubles total = {0.0};
    for (long i = 0; i < n; i += DOUBLES)
        total += *(const Doubles *)(a + i) * *(const Doubles *)(b + i);
    return sum(total);
}

/* to += a from, vectors of n numbers. */
INLINE void add(double a, const double *from, double *to, long n)
{
    for (long i = 0; i < n; i += DOUBLES)
        *(Doubles *)(to + i) += a * *(const Doubles *)(from + i);
}

/* Replaces K by its Cholesky factor L, K = L L^T; returns 0 if K is not positive definite. */
static int factorise(double *K, long t)
{
    const long tp = up_to(t, DOUBLES);
    for (long k = 0; k < t; k++) {
        double *column = K + k * tp, pivot = column[k];
        if (!(pivot > 0.0) || pivot > DBL_MAX)
            return 0;
        const double scale = 1.0 / sqrt(pivot);
        for (long i = k / DOUBLES * DOUBLES; i < tp; i += DOUBLES)
            *(Doubles *)(column + i) *= scale;
        for (long j = k + 1; j < t; j++) {
            const long from = j / DOUBLES * DOUBLES;
            add(-column[j], column + from, K + j * tp + from, tp - from);
        }
    }
    return 1;
}

/* v = L^-1 v. */
static void forward(const double *L, long t, double *v)
{
    const long tp = up_to(t, DOUBLES);
    for (long k = 0; k < t; k++) {
        const double *column = L + k * tp;
        const long from = k / DOUBLES * DOUBLES;
        double found = v[k] / column[k], before[DOUBLES];
        for (long i = from; i < k; i++)
            before[i - from] = v[i];
        add(-found, column + from, v + from, tp - from);
        for (long i = from; i < k; i++) /* entries above the diagonal do not belong to L */
            v[i] = before[i - from];
        v[k] = found;
    }
}

/* v = L^-T v. */
static void backward(const double *L, long t, double *v)
{
    const long tp = up_to(t, DOUBLES);
    for (long k = t - 1; k >= 0; k--) {
        const double *column = L + k * tp;
        const long next = k / DOUBLES * DOUBLES + DOUBLES;
        double rest = v[k];
        for (long i = k + 1; i < next && i < t; i++)
            rest -= column[i] * v[i];
        v[k] = (next < tp ? rest - dot(column + next, v + next, tp - next) : rest) / column[k];
    }
}

static const double FAR = 1e9; /* coordinate of padding points, so that their covariance with any point is 0 */

/* K_ij = variance exp(-(at_i - at_j)^2 / (2 length^2)), each column j from the diagonal on. at: padded t. */
static void covariance(const double *at, long t, double length, double variance, double *K)
{
    const long tp = up_to(t, DOUBLES);
    const double slope = -0.5 / (length * length);
    for (long j = 0; j < t; j++)
        for (long i = j / DOUBLES * DOUBLES; i < tp; i += DOUBLES) {
            Doubles apart = *(const Doubles *)(at + i) - at[j];
            *(Doubles *)(K + j * tp + i) = variance * exponential(slope * apart * apart);
        }
}

#endif
