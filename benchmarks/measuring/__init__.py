"""What the benchmarks of training share: jobs in processes of their own, nets, contenders."""
