"""The servers in a lab's Pods, which tell whoever asks who answers and whom they saw."""
