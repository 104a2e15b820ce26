"""The app of the coordinator: the run's configuration says where study.toml is, and where results go."""

from fedconvex.engines.flower import study_server_app

app = study_server_app()
