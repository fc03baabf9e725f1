// SPDX-License-Identifier: Apache-2.0
//
// Overloads of Warp's solver functions for calls that have a device function of this project. Warp's own templates take
// the function as their first argument; here it is a Solver, so that these overloads are more specialized. Warp's
// headers come before.
//
// In a call of an adjoint that Warp has, the adjoint's function follows the forward one. In place of one that does nothing
// in Warp (warp_tiles/_warp/sites.py), it is the first argument.

#pragma once

namespace wt {

// Stands for a device function. Function::run takes pointers to the operands. That of an adjoint also takes one to
// Function::scratch elements of shared memory.
template <class Function>
struct Solver { };

// Calls an adjoint with the shared memory behind all tiles, which the module reserves for it.
template <class T, class F, class... Pointers>
inline CUDA_CALLABLE void run_adjoint(Solver<F>, Pointers... operands)
{
    constexpr int bytes = F::scratch * static_cast<int>(sizeof(T));  // int() is a macro of Warp
    F::run(operands..., wp::tile_shared_storage_t::alloc(bytes));
    wp::tile_shared_storage_t::alloc(-bytes);
}

}  // namespace wt

namespace wp {

template <bool Upper, class F, class Gemm, class Trsm, class TileA, class TileOut>
inline CUDA_CALLABLE TileOut& tile_cholesky(wt::Solver<F>, Gemm, Trsm, TileA& A, TileOut& Out)
{
    F::run(A.data.ptr, Out.data.ptr);
    Out.initialized = true;
    return Out;
}

template <bool Upper, class F, class TileA>
inline CUDA_CALLABLE void tile_cholesky_inplace(wt::Solver<F>, TileA& A)
{
    F::run(A.data.ptr, A.data.ptr);
}

// The adjoint's function stands in place of Warp's GEMM; the one in place of Warp's TRSM is not used.
template <bool Upper, class Fwd, class F, class Trsm, class TileA, class TileOut>
inline CUDA_CALLABLE void adj_tile_cholesky(Fwd, wt::Solver<F> f, Trsm, TileA&, TileOut& Out, Fwd, wt::Solver<F>, Trsm,
                                            TileA& adj_A, TileOut& adj_Out, TileOut&)
{
    wt::run_adjoint<typename TileA::Type>(f, Out.data.ptr, adj_Out.grad.ptr, adj_A.grad.ptr);
}

template <bool Upper, class F, class TileA, class AdjFwd, class AdjTileA>
inline CUDA_CALLABLE void adj_tile_cholesky_inplace(wt::Solver<F> f, TileA& A, AdjFwd, AdjTileA& adj_A)
{
    wt::run_adjoint<typename TileA::Type>(f, A.data.ptr, adj_A.grad.ptr, adj_A.grad.ptr);
}

template <bool Upper, class F, class TileA, class TileY, class TileX>
inline CUDA_CALLABLE TileX& tile_cholesky_solve(wt::Solver<F>, TileA& A, TileY& Y, TileX& X)
{
    F::run(A.data.ptr, Y.data.ptr, X.data.ptr);
    X.initialized = true;
    return X;
}

template <bool Upper, class F, class TileA, class TileY>
inline CUDA_CALLABLE void tile_cholesky_solve_inplace(wt::Solver<F>, TileA& A, TileY& Y)
{
    F::run(A.data.ptr, Y.data.ptr, Y.data.ptr);
}

template <bool Upper, class F, class TileA, class TileY, class TileX, class AdjFwd, class AdjTileA, class AdjTileY,
          class AdjTileX, class AdjRet>
inline CUDA_CALLABLE void adj_tile_cholesky_solve(wt::Solver<F> f, TileA& A, TileY&, TileX& X, AdjFwd, AdjTileA& adj_A,
                                                  AdjTileY& adj_Y, AdjTileX&, AdjRet& adj_ret)
{
    wt::run_adjoint<typename TileA::Type>(f, A.data.ptr, X.data.ptr, adj_ret.grad.ptr, adj_Y.grad.ptr, adj_A.grad.ptr);
}

template <bool Upper, class F, class TileA, class TileY, class AdjFwd, class AdjTileA, class AdjTileY>
inline CUDA_CALLABLE void adj_tile_cholesky_solve_inplace(wt::Solver<F> f, TileA& A, TileY& Y, AdjFwd, AdjTileA& adj_A,
                                                          AdjTileY& adj_Y)
{
    wt::run_adjoint<typename TileA::Type>(f, A.data.ptr, Y.data.ptr, adj_Y.grad.ptr, adj_Y.grad.ptr, adj_A.grad.ptr);
}

template <class F, class Bkwd, class TileL, class TileY, class TileZ>
inline CUDA_CALLABLE TileZ& tile_lower_solve(wt::Solver<F>, Bkwd, TileL& L, TileY& y, TileZ& z)
{
    F::run(L.data.ptr, y.data.ptr, z.data.ptr);
    z.initialized = true;
    return z;
}

template <class F, class TileL, class TileY>
inline CUDA_CALLABLE void tile_lower_solve_inplace(wt::Solver<F>, TileL& L, TileY& y)
{
    F::run(L.data.ptr, y.data.ptr, y.data.ptr);
}

template <class Fwd, class F, class TileL, class TileY, class TileZ, class AdjFwd, class AdjBkwd, class AdjTileL,
          class AdjTileY, class AdjTileZ, class AdjRet>
inline CUDA_CALLABLE void adj_tile_lower_solve(Fwd, wt::Solver<F> f, TileL& L, TileY&, TileZ& z, AdjFwd, AdjBkwd,
                                               AdjTileL& adj_L, AdjTileY& adj_y, AdjTileZ&, AdjRet& adj_ret)
{
    wt::run_adjoint<typename TileL::Type>(f, L.data.ptr, z.data.ptr, adj_ret.grad.ptr, adj_y.grad.ptr, adj_L.grad.ptr);
}

template <class F, class TileL, class TileY, class AdjFwd, class AdjTileL, class AdjTileY>
inline CUDA_CALLABLE void adj_tile_lower_solve_inplace(wt::Solver<F> f, TileL& L, TileY& y, AdjFwd, AdjTileL& adj_L,
                                                       AdjTileY& adj_y)
{
    wt::run_adjoint<typename TileL::Type>(f, L.data.ptr, y.data.ptr, adj_y.grad.ptr, adj_y.grad.ptr, adj_L.grad.ptr);
}

template <class F, class TileU, class TileZ, class TileX>
inline CUDA_CALLABLE TileX& tile_upper_solve(wt::Solver<F>, TileU& U, TileZ& z, TileX& x)
{
    F::run(U.data.ptr, z.data.ptr, x.data.ptr);
    x.initialized = true;
    return x;
}

template <class F, class TileU, class TileZ>
inline CUDA_CALLABLE void tile_upper_solve_inplace(wt::Solver<F>, TileU& U, TileZ& z)
{
    F::run(U.data.ptr, z.data.ptr, z.data.ptr);
}

template <class F, class TileU, class TileZ, class TileX, class AdjFwd, class AdjTileU, class AdjTileZ, class AdjTileX,
          class AdjRet>
inline CUDA_CALLABLE void adj_tile_upper_solve(wt::Solver<F> f, TileU& U, TileZ&, TileX& x, AdjFwd, AdjTileU& adj_U,
                                               AdjTileZ& adj_z, AdjTileX&, AdjRet& adj_ret)
{
    wt::run_adjoint<typename TileU::Type>(f, U.data.ptr, x.data.ptr, adj_ret.grad.ptr, adj_z.grad.ptr, adj_U.grad.ptr);
}

template <class F, class TileU, class TileZ, class AdjFwd, class AdjTileU, class AdjTileZ>
inline CUDA_CALLABLE void adj_tile_upper_solve_inplace(wt::Solver<F> f, TileU& U, TileZ& z, AdjFwd, AdjTileU& adj_U,
                                                       AdjTileZ& adj_z)
{
    wt::run_adjoint<typename TileU::Type>(f, U.data.ptr, z.data.ptr, adj_z.grad.ptr, adj_z.grad.ptr, adj_U.grad.ptr);
}

// A transposed tile shares the gradient of its tile. Warp's adjoint adds the elements of both to those of the tile, which
// adjoints of earlier solvers read.
template <class T, class Layout, bool Owner, class AdjTile>
inline CUDA_CALLABLE void adj_tile_transpose(tile_shared_t<T, Layout, Owner>&, tile_shared_t<T, Layout, Owner>&, AdjTile&)
{ }

}  // namespace wp
